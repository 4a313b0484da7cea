"""The erasure logs: an unfinished erasure's intent in the user's folder, and the user's history next to that folder.

The intent contains ids. It is written before an erasure starts, and is carried out again after a crash. The history has
an entry for each erasure, with fingerprints of ids. The history remains when the user's folder is removed. It is itself
never restored, but is applied to restored files. Both logs have checksums, because a flipped bit could cause other data
to be erased. Neither contains text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec

from memory_agent.erasure.request import Intent
from memory_agent.errors import EncryptionKeyMissingError, StoreError
from memory_agent.storage.environment import UserKey
from memory_agent.storage.folders import data_dir_of
from relay import described
from relay.disk import add_checksum, flush, verify_checksum, write_private
from relay.errors import UndecipherableError

INTENT_FILE = "erasing.json"
HISTORY_FOLDER = "erasures"
_STANDALONE = "erasures.jsonl"  # for a memory outside a data folder
_PURPOSE, _ABOUT = "erasing", INTENT_FILE.encode()


def write_intent(folder: Path, intent: Intent, key: UserKey | None = None) -> Intent:
    """Write an intent, merged with any unfinished one, and return it. Encrypted if there is a `key`. Durable on return.

    Raises `StoreError`, including if the unfinished intent erases a different session.
    """
    known = read_intent(folder, key)
    if known is not None:
        if known.session_id not in (None, intent.session_id) and intent.session_id is not None:
            raise StoreError(f"{folder}: the erasure of session {known.session_id} is not finished yet")
        intent = known.joined_with(intent)
    replace_intent(folder, intent, key)
    return intent


def replace_intent(folder: Path, intent: Intent, key: UserKey | None = None) -> None:
    """Replace the unfinished intent. Durable on return. Raises `StoreError`."""
    data = msgspec.json.encode(intent)
    if key is not None:
        data = key.cipher(_PURPOSE).seal(data, _ABOUT)
    write_atomically(folder / INTENT_FILE, add_checksum(data))


def read_intent(folder: Path, key: UserKey | None = None) -> Intent | None:
    """Return the unfinished erasure, or None. Raises `StoreError` for a file that cannot be read."""
    try:
        data = verify_checksum((folder / INTENT_FILE).read_bytes())
        if key is not None:
            data = key.cipher(_PURPOSE).open(data, _ABOUT)
        return msgspec.json.decode(data, type=described(Intent))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError, RecursionError, UndecipherableError) as error:
        raise StoreError(f"{folder / INTENT_FILE} cannot be read: {error}") from error


def encrypt_intent(folder: Path, key: UserKey) -> None:
    """Encrypt an intent that is not encrypted yet. Durable on return. Raises `StoreError`."""
    (folder / f"{INTENT_FILE}.new").unlink(missing_ok=True)
    try:
        read_intent(folder, key)
    except EncryptionKeyMissingError:
        raise
    except StoreError:
        intent = read_intent(folder)
        if intent is not None:
            replace_intent(folder, intent, key)


def close_intent(folder: Path) -> None:
    (folder / INTENT_FILE).unlink(missing_ok=True)
    flush(folder)


@contextmanager
def os_errors_as_store_errors(path: Path) -> Iterator[None]:
    """Raise `StoreError`, with the path, for an `OSError`."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def write_atomically(file: Path, content: bytes) -> None:
    """Replace a private file atomically. Durable on return. Raises `StoreError`."""
    with os_errors_as_store_errors(file):
        write_private(file, content)


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An erasure in the history: the fingerprints of the erased ids, and the counts from the receipt.

    `returned` lists erased memories and events that were imported again. `renewed` lists ids that newer memories have
    reused.
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
    """One user's erasures, in order. `unread` is the number of damaged lines."""

    erasures: tuple[HistoryEntry, ...] = ()
    unread: int = 0

    def memories_in(self, made_at: datetime) -> frozenset[str]:
        """Return the fingerprints of erased memories that a store copied at `made_at` may still contain."""
        gone: set[str] = set()
        for erasure in self.erasures:
            gone.update(erasure.memories)
            gone.difference_update(erasure.returned)
            gone.difference_update(erasure.renewed if erasure.at < made_at else ())
        return frozenset(gone)

    @property
    def events(self) -> frozenset[str]:
        gone: set[str] = set()
        for erasure in self.erasures:
            gone.update(erasure.events)
            gone.difference_update(erasure.returned)
        return frozenset(gone)

    def since(self, moment: datetime) -> History:
        return History(erasures=tuple(one for one in self.erasures if one.at >= moment), unread=self.unread)

    @property
    def sessions(self) -> frozenset[str]:
        return frozenset(one for erasure in self.erasures for one in erasure.sessions)

    @property
    def is_everything(self) -> bool:
        return any(erasure.everything for erasure in self.erasures)


def fingerprint(user_id: str, id_: str) -> str:
    """Return the fingerprint of an id, which differs from user to user."""
    key = blake2b(user_id.encode(errors="surrogatepass"), digest_size=32).digest()
    return blake2b(id_.encode(errors="surrogatepass"), digest_size=16, key=key).hexdigest()


def note_erasure(folder: Path, user_id: str, intent: Intent, now: datetime, *, once: bool = False) -> None:
    """Append an erasure to the history of the folder's user. Durable on return. Raises `StoreError`.

    With `once`, nothing is appended if the history already contains an equal entry that is newer than the intent, and
    none of its memories has been imported again since then.
    """
    by_rule = {rule: len(ids) for rule, ids in intent.expired.items()}
    if not (intent.all_ids or intent.session_id):
        return
    entry = HistoryEntry(
        at=now,
        memories=_fingerprints(user_id, intent.record_ids),
        events=_fingerprints(user_id, intent.event_ids if intent.record_ids or intent.session_id else ()),
        sessions=_fingerprints(user_id, () if intent.session_id is None else (intent.session_id,)),
        runs=_fingerprints(user_id, intent.run_ids),
        count=len(intent.all_ids),
        by_rule=by_rule,
    )
    file = _history_file(folder, user_id)
    since = intent.started_at if intent.session_id is None else now
    if once and _is_noted(read_history(folder, user_id), entry, since):
        with os_errors_as_store_errors(file):  # a crash may have prevented an earlier flush
            flush(file)
            flush(file.parent)
    else:
        _append(file, entry)


def note_reimported_ids(folder: Path, user_id: str, ids: Iterable[str], now: datetime) -> None:
    """Record that these memories and events were imported again. Durable on return. Raises `StoreError`."""
    returned = _fingerprints(user_id, ids)
    if returned:
        _append(_history_file(folder, user_id), HistoryEntry(at=now, returned=returned))


def note_renewed_id(folder: Path, user_id: str, record_id: str, now: datetime) -> None:
    _append(_history_file(folder, user_id), HistoryEntry(at=now, renewed=_fingerprints(user_id, (record_id,))))


def note_user_erased(folder: Path, user_id: str, now: datetime) -> None:
    """Replace a user's history with one entry: the whole user was erased. Durable on return. Raises `StoreError`."""
    if data_dir_of(folder) is not None:
        file = _with_folder(_history_file(folder, user_id))
        write_atomically(file, _encode(HistoryEntry(at=now, everything=True)))


def read_history(folder: Path, user_id: str) -> History:
    """Return a user's history; the user's folder need not exist. Raises `StoreError`."""
    file = _history_file(folder, user_id)
    with os_errors_as_store_errors(file):
        try:
            lines = file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return History()
    erasures, unread = [], 0
    for line in filter(None, lines):
        try:
            erasures.append(_decode(line))
        except (msgspec.DecodeError, ValueError, RecursionError):
            unread += 1
    return History(erasures=tuple(erasures), unread=unread)


def history_bytes(folder: Path, user_id: str) -> int:
    """Return the size of a user's history, which changes with every entry. Raises `StoreError`."""
    file = _history_file(folder, user_id)
    with os_errors_as_store_errors(file):
        try:
            return file.stat().st_size
        except FileNotFoundError:
            return 0


def _encode(entry: HistoryEntry) -> bytes:
    content = msgspec.json.encode(entry)
    return content + b" " + _checksum(content) + b"\n"


def _decode(line: bytes) -> HistoryEntry:
    content, _, checksum = line.rpartition(b" ")
    if checksum != _checksum(content):
        raise ValueError("the line does not match its checksum")
    return msgspec.json.decode(content, type=described(HistoryEntry))


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=8).hexdigest().encode()


def _fingerprints(user_id: str, ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(fingerprint(user_id, one) for one in ids)


def _history_file(folder: Path, user_id: str) -> Path:
    data_dir = data_dir_of(folder)
    if data_dir is None:
        return folder / _STANDALONE
    return data_dir / HISTORY_FOLDER / f"{fingerprint(user_id, user_id)}.jsonl"


def _is_noted(history: History, entry: HistoryEntry, since: datetime) -> bool:
    """Whether a matching entry was added at `since` or later and none of its ids has been imported again since then."""
    gone = {*entry.memories, *entry.events}
    is_noted = False
    for one in history.erasures:
        if one.at >= since and msgspec.structs.replace(one, at=entry.at) == entry:
            is_noted = True
        elif not gone.isdisjoint((*one.returned, *one.renewed)):
            is_noted = False
    return is_noted


def _append(file: Path, entry: HistoryEntry) -> None:
    with os_errors_as_store_errors(file):
        with open(os.open(_with_folder(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as appended:
            appended.write(b"\n" + _encode(entry))  # separates it from a line that a crash truncated
            appended.flush()
            os.fsync(appended.fileno())
        flush(file.parent)


def _with_folder(file: Path) -> Path:
    with os_errors_as_store_errors(file.parent):
        file.parent.mkdir(mode=0o700, exist_ok=True)
    return file
