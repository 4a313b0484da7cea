"""What an erasure is about to do, on the disk before it begins, so that a crash half way does not end it.

Ids only, no text, and sealed: with one flipped bit it would erase something else. The steps are idempotent: who finds
the file does all of them again.
"""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from pathlib import Path

import msgspec

from memory_agent.errors import EncryptionKeyMissingError, StoreError
from memory_agent.storage.user_key import UserKey
from relay import UndecipherableError
from relay.disk import add_checksum, flush, verify_checksum, write_private

LEDGER_FILE = "erasing.json"
_PURPOSE, _ABOUT = "erasing", LEDGER_FILE.encode()


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The memories and the session that are being erased, and the events that they were made of.

    `expired` has the ids of memories that reached the age of a rule, which are in `record_ids` no second time.
    `everything`: the whole user goes, in the end with the folder. `with_journal`: their events are still to be erased
    from the journal, by whoever has it; the store cannot.
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
        """The ids of all memories that go."""
        return tuple(dict.fromkeys((*self.record_ids, *chain.from_iterable(self.expired.values()))))


def write_intent(folder: Path, intent: Intent, key: UserKey | None = None) -> Intent:
    """Keep an intent, together with one that is not through yet, and return both as one; durable on return.

    With a `key` it is encrypted. Raises `StoreError`.
    """
    known = read_intent(folder, key)
    if known is not None and known.session_id not in (None, intent.session_id) and intent.session_id is not None:
        raise StoreError(f"{folder}: the erasure of session {known.session_id} is not through yet")
    if known is not None:
        intent = Intent(
            started_at=known.started_at,
            record_ids=tuple(dict.fromkeys((*known.record_ids, *intent.record_ids))),
            event_ids=tuple(dict.fromkeys((*known.event_ids, *intent.event_ids))),
            session_id=intent.session_id or known.session_id,
            run_ids=tuple(dict.fromkeys((*known.run_ids, *intent.run_ids))),
            with_journal=known.with_journal or intent.with_journal,
            expired=_joined(known.expired, intent.expired),
            everything=known.everything or intent.everything,
        )
    _write(folder, intent, key)
    return intent


def _joined(some: dict[str, tuple[str, ...]], more: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {rule: tuple(dict.fromkeys((*some.get(rule, ()), *more.get(rule, ())))) for rule in some | more}


def note_journal_done(folder: Path, intent: Intent, key: UserKey | None = None) -> Intent:
    """Note that the events of a kept intent are gone from the journal; durable on return. Raises `StoreError`."""
    intent = msgspec.structs.replace(intent, with_journal=False)
    _write(folder, intent, key)
    return intent


def _write(folder: Path, intent: Intent, key: UserKey | None) -> None:
    data = msgspec.json.encode(intent)
    if key is not None:
        data = key.cipher(_PURPOSE).seal(data, _ABOUT)
    write_whole(folder / LEDGER_FILE, add_checksum(data))


def write_whole(file: Path, content: bytes) -> None:
    """Put a private file in its place, whole or not at all; durable on return. Raises `StoreError`."""
    try:
        write_private(file, content)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def read_intent(folder: Path, key: UserKey | None = None) -> Intent | None:
    """Return the erasure that was begun and is not through, or None. Raises `StoreError` for one that is unreadable."""
    try:
        data = verify_checksum((folder / LEDGER_FILE).read_bytes())
        if key is not None:
            data = key.cipher(_PURPOSE).open(data, _ABOUT)
        return msgspec.json.decode(data, type=Intent)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError, RecursionError, UndecipherableError) as error:
        raise StoreError(f"{folder / LEDGER_FILE} cannot be read: {error}") from error


def encrypt_intent(folder: Path, key: UserKey) -> None:
    """Encrypt an erasure that was begun while nothing was; durable on return. Raises `StoreError`."""
    (folder / f"{LEDGER_FILE}.new").unlink(missing_ok=True)
    try:
        read_intent(folder, key)
    except EncryptionKeyMissingError:
        raise
    except StoreError:
        intent = read_intent(folder)
        if intent is not None:
            _write(folder, intent, key)


def is_through(intent: Intent, kept: Intent) -> bool:
    """Whether nothing of the `kept` intent is left to be erased from the journal by somebody else than whoever carried
    out `intent`: it may have been joined by another's, or have been begun by one who has the journal."""
    return not kept.with_journal or (
        intent.with_journal
        and intent.everything == kept.everything
        and set(kept.event_ids) <= set(intent.event_ids)
        and set(kept.run_ids) <= set(intent.run_ids)
        and kept.session_id in (None, intent.session_id)
    )


def close_intent(folder: Path) -> None:
    """Note that an erasure is through."""
    (folder / LEDGER_FILE).unlink(missing_ok=True)
    flush(folder)
