"""The intent log of an erasure: what it is going to erase, durable before it begins.

A file that is found again after a crash is redone as a whole, since every step is idempotent. It holds ids and no text,
and a checksum, because one flipped bit would erase something else.
"""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from pathlib import Path

import msgspec

from memory_agent.errors import EncryptionKeyMissingError, StoreError
from memory_agent.storage.environment import UserKey
from relay import Erasable
from relay.disk import add_checksum, flush, verify_checksum, write_private
from relay.errors import UndecipherableError

INTENT_FILE = "erasing.json"
_PURPOSE, _ABOUT = "erasing", INTENT_FILE.encode()


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The memories and the session to erase, and the events that they were made of.

    `expired`: by retention rule, the ids that expired; they are not repeated in `record_ids`. `everything`: the user is
    erased, finally with the folder. `with_journal`: the events are still to be erased from the journal, by the process
    that owns it.
    """

    started_at: datetime
    record_ids: tuple[str, ...] = ()
    event_ids: tuple[str, ...] = ()
    session_id: str | None = None
    run_ids: tuple[str, ...] = ()
    with_journal: bool = False
    expired: dict[str, tuple[str, ...]] = {}
    everything: bool = False

    @property
    def all_ids(self) -> tuple[str, ...]:
        """The ids of all memories to erase."""
        return tuple(dict.fromkeys((*self.record_ids, *chain.from_iterable(self.expired.values()))))


def write_intent(folder: Path, intent: Intent, key: UserKey | None = None) -> Intent:
    """Write an intent, merged with an unfinished one, and return the result. Encrypted with `key`. Durable on return.

    Raises `StoreError`, also for two sessions at a time.
    """
    known = read_intent(folder, key)
    if known is not None and known.session_id not in (None, intent.session_id) and intent.session_id is not None:
        raise StoreError(f"{folder}: the erasure of session {known.session_id} is not finished yet")
    if known is not None:
        intent = Intent(
            started_at=known.started_at,
            record_ids=tuple(dict.fromkeys((*known.record_ids, *intent.record_ids))),
            event_ids=tuple(dict.fromkeys((*known.event_ids, *intent.event_ids))),
            session_id=intent.session_id or known.session_id,
            run_ids=tuple(dict.fromkeys((*known.run_ids, *intent.run_ids))),
            with_journal=known.with_journal or intent.with_journal,
            expired=_merged(known.expired, intent.expired),
            everything=known.everything or intent.everything,
        )
    _write(folder, intent, key)
    return intent


def _merged(some: dict[str, tuple[str, ...]], more: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {rule: tuple(dict.fromkeys((*some.get(rule, ()), *more.get(rule, ())))) for rule in some | more}


def mark_journal_done(folder: Path, intent: Intent, key: UserKey | None = None) -> Intent:
    """Write that the events of an intent are erased from the journal. Durable on return. Raises `StoreError`."""
    intent = msgspec.structs.replace(intent, with_journal=False)
    _write(folder, intent, key)
    return intent


def spare_memory(folder: Path, intent: Intent, record_id: str, key: UserKey | None = None) -> Intent:
    """Write that a memory of an intent is erased, so that a new one with its id stays. Durable. Raises `StoreError`."""
    kept = {rule: tuple(one for one in ids if one != record_id) for rule, ids in intent.expired.items()}
    record_ids = tuple(one for one in intent.record_ids if one != record_id)
    intent = msgspec.structs.replace(intent, record_ids=record_ids, expired=kept)
    _write(folder, intent, key)
    return intent


def _write(folder: Path, intent: Intent, key: UserKey | None) -> None:
    data = msgspec.json.encode(intent)
    if key is not None:
        data = key.cipher(_PURPOSE).seal(data, _ABOUT)
    write_atomically(folder / INTENT_FILE, add_checksum(data))


def write_atomically(file: Path, content: bytes) -> None:
    """Replace a private file, whole or not at all. Durable on return. Raises `StoreError`."""
    try:
        write_private(file, content)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def read_intent(folder: Path, key: UserKey | None = None) -> Intent | None:
    """Return the unfinished erasure, or None. Raises `StoreError` for a file that cannot be read."""
    try:
        data = verify_checksum((folder / INTENT_FILE).read_bytes())
        if key is not None:
            data = key.cipher(_PURPOSE).open(data, _ABOUT)
        return msgspec.json.decode(data, type=Intent)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError, RecursionError, UndecipherableError) as error:
        raise StoreError(f"{folder / INTENT_FILE} cannot be read: {error}") from error


def encrypt_intent(folder: Path, key: UserKey) -> None:
    """Encrypt a plain intent; an encrypted one stays as it is. Durable on return. Raises `StoreError`."""
    (folder / f"{INTENT_FILE}.new").unlink(missing_ok=True)
    try:
        read_intent(folder, key)
    except EncryptionKeyMissingError:
        raise
    except StoreError:
        intent = read_intent(folder)
        if intent is not None:
            _write(folder, intent, key)


def covers_journal(intent: Intent, kept: Intent) -> bool:
    """Whether the events of the `kept` intent, which merges several, are erased with those of `intent`."""
    return not kept.with_journal or (
        intent.with_journal
        and intent.everything == kept.everything
        and set(kept.event_ids) <= set(intent.event_ids)
        and set(kept.run_ids) <= set(intent.run_ids)
        and kept.session_id in (None, intent.session_id)
    )


def close_intent(folder: Path) -> None:
    """Remove the intent of a finished erasure. Durable on return."""
    (folder / INTENT_FILE).unlink(missing_ok=True)
    flush(folder)


def erasable(user_id: str, intent: Intent) -> Erasable:
    """Return the user's own events to erase from the journal: those of the memories, the session and its runs.

    Blocks that quote one of the memories (`memory.recalled`) are among them.

    Events that conductors published for the user as `system` are found by the map of run owners (`storage.owners`).
    """
    return Erasable(
        user_id=user_id,
        everything=intent.everything,
        event_ids=frozenset(intent.event_ids),
        session_ids=frozenset() if intent.session_id is None else frozenset({intent.session_id}),
        run_ids=frozenset(intent.run_ids),
        quoted=frozenset(intent.all_ids),
    )
