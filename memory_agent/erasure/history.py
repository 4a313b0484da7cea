"""The history of erasures, one file per user beside the stores: a restored backup is erased from again by it.

It holds fingerprints of ids and no text: a guessed id can be tested, none can be read back. Expired memories are only
counted, since they expire again wherever they are restored. It is never moved aside or restored, and knows nothing of
erasures on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec

from memory_agent.erasure.intent_log import Intent, write_atomically
from memory_agent.errors import StoreError
from memory_agent.storage.folders import data_dir_of
from relay.disk import flush

HISTORY_FOLDER = "erasures"
_STANDALONE = "erasures.jsonl"  # of a memory outside a data folder


class Erasure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One erasure: fingerprints of ids, and the counts of its receipt.

    `returned`: memories and events that had been erased and were imported again. `renewed`: ids of erased memories
    under which others were stored since; backups made before hold what was erased.
    """

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    everything: bool = False
    memories: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    count: int = 0
    by_rule: dict[str, int] = {}
    renewed: tuple[str, ...] = ()


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The erasures of one user, in order. `unread`: the number of damaged lines."""

    erasures: tuple[Erasure, ...] = ()
    unread: int = 0

    def memories_in(self, made_at: datetime) -> frozenset[str]:
        """Fingerprints of the erased memories that a store of this moment may hold.

        Without those that were imported again, and the ids under which others were stored before it.
        """
        gone: set[str] = set()
        for erasure in self.erasures:
            gone.update(erasure.memories)
            gone.difference_update(erasure.returned)
            gone.difference_update(erasure.renewed if erasure.at < made_at else ())
        return frozenset(gone)

    @property
    def events(self) -> frozenset[str]:
        """Fingerprints of the events that the erased memories were made of."""
        gone: set[str] = set()
        for erasure in self.erasures:
            gone.update(erasure.events)
            gone.difference_update(erasure.returned)
        return frozenset(gone)

    def since(self, moment: datetime) -> History:
        """Return the erasures at `moment` or later."""
        return History(erasures=tuple(one for one in self.erasures if one.at >= moment), unread=self.unread)

    @property
    def sessions(self) -> frozenset[str]:
        """Fingerprints of the erased sessions."""
        return frozenset(one for erasure in self.erasures for one in erasure.sessions)

    @property
    def is_everything(self) -> bool:
        """Whether the whole user was erased."""
        return any(erasure.everything for erasure in self.erasures)


def fingerprint(user_id: str, id_: str) -> str:
    """Return the fingerprint of an id; it differs between users."""
    key = blake2b(user_id.encode(errors="surrogatepass"), digest_size=32).digest()
    return blake2b(id_.encode(errors="surrogatepass"), digest_size=16, key=key).hexdigest()


def note_erasure(folder: Path, user_id: str, intent: Intent, now: datetime, *, once: bool = False) -> None:
    """Append an erasure to the history of the user with this folder. Durable on return. Raises `StoreError`.

    With `once`, an entry that was made since the intent began is not repeated, unless its memories were imported again.
    A session is repeated if `now` is later, since it may have gone on.
    """
    by_rule = {rule: len(ids) for rule, ids in intent.expired.items()}
    if not (intent.all_ids or intent.session_id):
        return
    erasure = Erasure(
        at=now,
        memories=_fingerprints(user_id, intent.record_ids),
        events=_fingerprints(user_id, intent.event_ids if intent.record_ids or intent.session_id else ()),
        sessions=_fingerprints(user_id, () if intent.session_id is None else (intent.session_id,)),
        runs=_fingerprints(user_id, intent.run_ids),
        count=len(intent.all_ids),
        by_rule=by_rule,
    )
    file = _file(folder, user_id)
    since = intent.started_at if intent.session_id is None else now
    if once and _is_noted(read_history(folder, user_id), erasure, since):
        _flush(file)  # its writer may have died before it was durable
    else:
        _append(file, erasure)


def note_reimported_ids(folder: Path, user_id: str, ids: Iterable[str], now: datetime) -> None:
    """Append that these memories and events were imported again. Durable on return. Raises `StoreError`."""
    returned = _fingerprints(user_id, ids)
    if returned:
        _append(_file(folder, user_id), Erasure(at=now, returned=returned))


def note_renewed_id(folder: Path, user_id: str, record_id: str, now: datetime) -> None:
    """Append that another memory is stored under an erased id. Durable on return. Raises `StoreError`."""
    _append(_file(folder, user_id), Erasure(at=now, renewed=_fingerprints(user_id, (record_id,))))


def note_user_erased(folder: Path, user_id: str, now: datetime) -> None:
    """Replace a user's history by the erasure of the whole user. Durable on return. Raises `StoreError`."""
    if data_dir_of(folder) is not None:
        file = _with_folder(_file(folder, user_id))
        write_atomically(file, _encode(Erasure(at=now, everything=True)))


def read_history(folder: Path, user_id: str) -> History:
    """Return a user's history; the user's folder need not exist. Raises `StoreError`."""
    file = _file(folder, user_id)
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error
    erasures, unread = [], 0
    for line in filter(None, lines):
        try:
            erasures.append(_decode(line))
        except (msgspec.DecodeError, ValueError, RecursionError):
            unread += 1
    return History(erasures=tuple(erasures), unread=unread)


def history_bytes(folder: Path, user_id: str) -> int:
    """Return the size of a user's history, which changes with every entry; 0 without one. Raises `StoreError`."""
    file = _file(folder, user_id)
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def _encode(erasure: Erasure) -> bytes:
    """Return a line with its checksum: a flipped bit in a fingerprint would silently undo an erasure."""
    content = msgspec.json.encode(erasure)
    return content + b" " + _checksum(content) + b"\n"


def _decode(line: bytes) -> Erasure:
    content, _, checksum = line.rpartition(b" ")
    if checksum != _checksum(content):
        raise ValueError("the line does not match its checksum")
    return msgspec.json.decode(content, type=Erasure)


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=8).hexdigest().encode()


def _fingerprints(user_id: str, ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(fingerprint(user_id, one) for one in ids)


def _file(folder: Path, user_id: str) -> Path:
    data_dir = data_dir_of(folder)
    if data_dir is None:
        return folder / _STANDALONE
    return data_dir / HISTORY_FOLDER / f"{fingerprint(user_id, user_id)}.jsonl"


def _is_noted(history: History, erasure: Erasure, since: datetime) -> bool:
    """Whether the same entry was made at `since` or later, and none of its ids were imported again after it."""
    gone = {*erasure.memories, *erasure.events}
    is_noted = False
    for one in history.erasures:
        if one.at >= since and msgspec.structs.replace(one, at=erasure.at) == erasure:
            is_noted = True
        elif not gone.isdisjoint((*one.returned, *one.renewed)):
            is_noted = False
    return is_noted


def _flush(file: Path) -> None:
    try:
        flush(file)
        flush(file.parent)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def _append(file: Path, erasure: Erasure) -> None:
    """Append a line, after a line end: what a crash cut off stays a line of its own."""
    try:
        with open(os.open(_with_folder(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as appended:
            appended.write(b"\n" + _encode(erasure))
            appended.flush()
            os.fsync(appended.fileno())
        flush(file.parent)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def _with_folder(file: Path) -> Path:
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{file.parent}: {error.strerror}") from error
    return file
