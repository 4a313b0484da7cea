"""What was erased, kept beside the users so that a backup brought back can be erased from again. One file per user.

It holds fingerprints of ids and no text: who can guess an id can see whether it was erased, nobody can read one back.
What went by a rule of retention is only counted, since it ages again wherever it comes back. Never put aside or
restored itself. What this does not do: know what was erased on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec

from memory_agent.erasure.ledger import Intent, write_whole
from memory_agent.errors import StoreError
from memory_agent.storage.folders import data_dir_of
from relay.disk import flush

HISTORY_FOLDER = "erasures"
_ALONE = "erasures.jsonl"  # of a memory that lies in no data folder


class Erasure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One erasure: fingerprints of what it named and found, and the counts of its receipt.

    `returned`: memories and events that had been erased before, and were brought in again on purpose.
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


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All that was erased of one user. `unread`: lines that were damaged."""

    erasures: tuple[Erasure, ...] = ()
    unread: int = 0

    @property
    def memories(self) -> frozenset[str]:
        """Fingerprints of all memories that were erased, but for those that were brought in again later."""
        return self._gone(lambda erasure: erasure.memories)

    @property
    def events(self) -> frozenset[str]:
        """Fingerprints of the events that they were made of."""
        return self._gone(lambda erasure: erasure.events)

    def _gone(self, named: Callable[[Erasure], tuple[str, ...]]) -> frozenset[str]:
        gone: set[str] = set()
        for erasure in self.erasures:
            gone.update(named(erasure))
            gone.difference_update(erasure.returned)
        return frozenset(gone)

    def since(self, moment: datetime) -> History:
        """Return what was erased then or later: a session that was erased may have gone on."""
        return History(erasures=tuple(one for one in self.erasures if one.at >= moment), unread=self.unread)

    @property
    def sessions(self) -> frozenset[str]:
        """Fingerprints of the sessions that were erased."""
        return frozenset(one for erasure in self.erasures for one in erasure.sessions)

    @property
    def is_everything(self) -> bool:
        """Whether the whole user was erased."""
        return any(erasure.everything for erasure in self.erasures)


def fingerprint(user_id: str, id_: str) -> str:
    """Return what is kept of an id: the same one of another user is another."""
    key = blake2b(user_id.encode(errors="surrogatepass"), digest_size=32).digest()
    return blake2b(id_.encode(errors="surrogatepass"), digest_size=16, key=key).hexdigest()


def note_erasure(folder: Path, user_id: str, intent: Intent, now: datetime, *, once: bool = False) -> None:
    """Keep what an erasure named and found; durable on return. `folder` is the user's. Raises `StoreError`.

    With `once`, what was noted since the intent was begun is not noted again, unless it was brought in again after
    that. A session is, where `now` is later: it may have gone on.
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
        _flush(file)  # who noted it may have died before it was on the disk
    else:
        _append(file, erasure)


def note_returned(folder: Path, user_id: str, ids: Iterable[str], now: datetime) -> None:
    """Keep that memories and events, by their ids, were brought in again on purpose. Durable; raises `StoreError`."""
    returned = _fingerprints(user_id, ids)
    if returned:
        _append(_file(folder, user_id), Erasure(at=now, returned=returned))


def note_user_erased(folder: Path, user_id: str, now: datetime) -> None:
    """Keep that a whole user was erased, and nothing of what was erased of it before; durable on return.

    Raises `StoreError`.
    """
    if data_dir_of(folder) is not None:
        file = _made(_file(folder, user_id))
        write_whole(file, _line(Erasure(at=now, everything=True)))


def read_history(folder: Path, user_id: str) -> History:
    """Return what was erased of a user, whose folder need not exist any more. Raises `StoreError`."""
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
            erasures.append(_opened(line))
        except (msgspec.DecodeError, ValueError, RecursionError):
            unread += 1
    return History(erasures=tuple(erasures), unread=unread)


def _line(erasure: Erasure) -> bytes:
    """Return a line with its checksum: a flipped bit in a fingerprint would let something come back, unseen."""
    content = msgspec.json.encode(erasure)
    return content + b" " + _checksum(content) + b"\n"


def _opened(line: bytes) -> Erasure:
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
        return folder / _ALONE
    return data_dir / HISTORY_FOLDER / f"{fingerprint(user_id, user_id)}.jsonl"


def _is_noted(history: History, erasure: Erasure, since: datetime) -> bool:
    """Say whether the very same was noted at `since` or later, and nothing of it brought in again after that."""
    gone = {*erasure.memories, *erasure.events}
    is_noted = False
    for one in history.erasures:
        if one.at >= since and msgspec.structs.replace(one, at=erasure.at) == erasure:
            is_noted = True
        elif not gone.isdisjoint(one.returned):
            is_noted = False
    return is_noted


def _flush(file: Path) -> None:
    try:
        flush(file)
        flush(file.parent)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def _append(file: Path, erasure: Erasure) -> None:
    """Begin with a line end: what a crash cut off before is a line of its own, and this one whole."""
    try:
        with open(os.open(_made(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as appended:
            appended.write(b"\n" + _line(erasure))
            appended.flush()
            os.fsync(appended.fileno())
        flush(file.parent)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def _made(file: Path) -> Path:
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{file.parent}: {error.strerror}") from error
    return file
