"""Two small BEAM chats in the two published formats: batches of turns, and plain lists of messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BATCHES: list[dict[str, Any]] = [
    {
        "batch_number": 1,
        "time_anchor": None,
        "turns": [
            [
                {"role": "user", "id": 0, "time_anchor": "March-15-2024", "index": "1,1",
                 "question_type": "main_question", "content": "My greenhouse has 12 tomato plants. ->-> 1,1"},
                {"role": "assistant", "id": 1, "content": "Water them in the morning."},
            ],
            [
                {"role": "user", "id": 2, "index": "1,2", "content": "I prefer organic fertiliser. ->-> 1,2"},
                {"role": "assistant", "id": 3, "content": "Compost works well."},
            ],
        ],
    },
    {
        "batch_number": 2,
        "time_anchor": "April-02-2024",
        "turns": [
            [
                {"role": "user", "id": 4, "index": "2,1", "content": "By now it has 20 tomato plants. ->-> 2,1"},
                {"role": "assistant", "id": 5, "content": "Then space is getting tight."},
            ]
        ],
    },
]  # fmt: skip
PROBES: dict[str, list[dict[str, Any]]] = {
    "abstention": [{"question": "Which school did I attend?", "ideal_response": "unknown", "rubric": []}],
    "knowledge_update": [
        {
            "question": "How many tomato plants does the greenhouse have?",
            "source_chat_ids": {"original_info": [0], "updated_info": [4]},
        }
    ],
    "preference_following": [
        {"question": "What kind of fertiliser do I prefer?", "source_chat_ids": [2, 2, 77], "rubric": ["organic"]}
    ],
}


def write_beam(folder: Path) -> Path:
    """Write the same messages and questions as batches (`chats/100K/2`) and as plain lists (`chats/100K/10`)."""
    chats = folder / "chats"
    write_chat(chats / "100K" / "2", BATCHES)
    write_chat(chats / "100K" / "10", [[m for turn in batch["turns"] for m in turn] for batch in BATCHES])
    return chats


def write_chat(folder: Path, chat: Any, probes: Any = None, name: str = "chat.json") -> Path:
    (folder / "probing_questions").mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(chat))
    (folder / "probing_questions" / "probing_questions.json").write_text(
        json.dumps(PROBES if probes is None else probes)
    )
    return folder
