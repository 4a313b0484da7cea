"""The laboratory's numbered events, each with a unique word and the name of its user."""

from __future__ import annotations

USERS = ("alice", "bob", "carol")
ROOMS = ("kitchen", "archive", "harbour", "workshop", "library", "cellar", "garden", "station")


def event(publisher: str, number: int) -> dict[str, object]:
    """Return the event with this number. Each publisher alternates between the users."""
    user_id = USERS[number % len(USERS)]
    room = ROOMS[number % len(ROOMS)]
    return {
        "event_id": f"{publisher}-{number:06d}",
        "event_type": "chat.user_msg",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": user_id,
        "actor_id": publisher,
        "session_id": f"{user_id}-{number // 50}",
        "payload": {"text": f"{user_id} said: please look after {lamp(publisher, number)} in the {room} and report"},
    }


def lamp(publisher: str, number: int) -> str:
    """Return the word that is unique to this event."""
    return f"lamp{publisher}{number:06d}"


def is_to_be_forgotten(event_id: str) -> bool:
    """Whether the store's owner forgets this event's memory; true for one in eleven."""
    return int(event_id.rpartition("-")[2]) % 11 == 3
