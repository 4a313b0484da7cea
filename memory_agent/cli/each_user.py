"""One user, or all users of a data folder in turn, through the daemon where one runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from memory_agent.cli.access import note_unknown, open_for_reading
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target
from memory_agent.cli.permission import key_shown
from memory_agent.cli.progress import progress_bars
from memory_agent.errors import EncryptionKeyMissingError
from memory_agent.storage.folders import known_users

if TYPE_CHECKING:
    from memory_agent.care.encryption import OnMissingKey
    from memory_agent.client import MemoryClient
    from memory_agent.memory import Memory

Answer = TypeVar("Answer")


def skip_without_key(target: Target) -> OnMissingKey | None:
    """Return what notes that a user without the key is skipped; None where that user was named, which is an error."""
    return None if target.user_named else note_skipped


def note_skipped(error: EncryptionKeyMissingError) -> None:
    note(f"user {error.user_id} is skipped: {error}")


def for_each_user(
    target: Target, method: str, what: str, ask: Callable[[MemoryClient | Memory], Answer]
) -> dict[str, Answer]:
    """Return what `ask` gives for the user who was named, or for each; a remote endpoint knows only who is named, and a
    key for one user that was given names that one.

    Of all users, those are passed over, and named, whose key is gone: it was destroyed, and the others' was not.
    """
    users = [target.user_id] if target.user_named or target.endpoint is not None else _users(target)
    answers: dict[str, Answer] = {}
    with progress_bars() as report:
        for done, user_id in enumerate(users):
            report(what, done, len(users))
            one = target if user_id == target.user_id else replace(target, user_id=user_id, user_named=True)
            try:
                with open_for_reading(one, method) as memory:
                    answers[user_id] = ask(memory)
                    note_unknown(one)
            except EncryptionKeyMissingError as error:
                if target.user_named:
                    raise
                note_skipped(error)
        report(what, len(users), len(users))
    return answers


def _users(target: Target) -> list[str]:
    key = key_shown(target)
    return list(known_users(target.data_dir)) if key is None or key.user_id is None else [key.user_id]
