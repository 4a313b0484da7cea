"""A LoCoMo file small enough to verify every answer by hand."""

from __future__ import annotations

import json
from pathlib import Path

TURNS = (
    (1, "Ann", "I bought a kiln for the garage."),
    (1, "Ben", "The dentist moved my appointment to noon."),
    (1, "Ann", "We spent two weeks hiking in Norway."),
    (2, "Ben", "My daughter started to play the cello."),
    (2, "Ben", "The parser bug took me all of Tuesday."),
)
QUESTIONS = (
    ("Where did Ann go hiking in Norway?", ["D1:3"], 4),
    ("Which instrument does the daughter play, the cello?", ["D2:1"], 5),
    ("What did Ann buy a kiln for, and what bug did Ben have?", ["D1:1; D2:2", "D9:9"], 1),
    ("What was never said?", [], 3),
)
DATES = {1: "1:56 pm on 8 May, 2023", 2: "9:05 am on 1 June, 2023"}


def write_locomo(folder: Path, conversations: int) -> Path:
    """Write a file of conversations with these turns and questions."""
    conversation: dict[str, object] = {}
    for session, date in DATES.items():
        said = [(speaker, text) for number, speaker, text in TURNS if number == session]
        conversation[f"session_{session}_date_time"] = date
        conversation[f"session_{session}"] = [
            {"speaker": speaker, "dia_id": f"D{session}:{number}", "text": text}
            for number, (speaker, text) in enumerate(said, 1)
        ]
    questions = [
        {"question": text, "answer": "x", "evidence": evidence, "category": category}
        for text, evidence, category in QUESTIONS
    ]
    file = folder / "locomo.json"
    file.write_text(json.dumps([{"conversation": conversation, "qa": questions}] * conversations))
    return file
