"""A LoCoMo file small enough to know every answer by heart."""

from __future__ import annotations

import json
from pathlib import Path

TURNS = (
    ("Ann", "I bought a kiln for the garage."),
    ("Ben", "My daughter started to play the cello."),
    ("Ann", "We spent two weeks hiking in Norway."),
    ("Ben", "The parser bug took me all of Tuesday."),
)
QUESTIONS = (
    ("Where did Ann go hiking in Norway?", ["D1:3"], 4),
    ("Which instrument does the daughter play, the cello?", ["D1:2"], 4),
    ("What did Ann buy a kiln for, and what bug did Ben have?", ["D1:1; D1:4", "D9:9"], 1),
    ("What was never said?", [], 5),
)


def write_locomo(folder: Path, conversations: int) -> Path:
    """Write a file of so many conversations with these turns and questions."""
    turns = [
        {"speaker": speaker, "dia_id": f"D1:{number}", "text": text} for number, (speaker, text) in enumerate(TURNS, 1)
    ]
    questions = [
        {"question": text, "answer": "x", "evidence": evidence, "category": category}
        for text, evidence, category in QUESTIONS
    ]
    conversation = {"session_1": turns, "session_1_date_time": "1:56 pm on 8 May, 2023"}
    file = folder / "locomo.json"
    file.write_text(json.dumps([{"conversation": conversation, "qa": questions}] * conversations))
    return file
