"""Users with long timelines, imported without a model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from memory_samples import open_without_model

from memory_agent.storage.folders import user_folder

WITHOUT_MODEL = ("embedder.folder=no-such-model", "embedder.allow_download=false")
"""Settings for a daemon that embeds nothing."""
_IN_A_SESSION = 50


def import_messages(data_dir: Path, user: str, times: Sequence[datetime]) -> None:
    """Store a message for each time, in sessions of 50; each text contains the index of its time."""
    events = [
        {
            "event_id": f"e-{number:05}",
            "event_type": "chat.user_msg",
            "timestamp": time.isoformat(),
            "user_id": user,
            "session_id": f"session-{number // _IN_A_SESSION}",
            "payload": {"text": f"Memory number {number}"},
        }
        for number, time in enumerate(times)
    ]
    store = user_folder(data_dir, user)
    store.parent.mkdir(parents=True, exist_ok=True)
    with open_without_model(store) as memory:
        for begin in range(0, len(events), 500):
            memory.ingest(events[begin : begin + 500])
