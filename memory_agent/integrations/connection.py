"""Connects a client to the memory: writes our entries into its files, and removes exactly those entries.

A copy of the original is stored in our state folder, because a project's folder is shared. A record in the state folder
contains the file before and after the change. With this record, disconnecting restores the original bytes, unless the
file has been edited since.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from memory_agent.errors import ClientSettingsError
from memory_agent.integrations.clients import Command, File, Found, Scope, Text
from memory_agent.integrations.json_text import JsonText, KeyPath, UneditableError
from memory_agent.integrations.toml_text import TomlText
from relay import described
from relay.disk import flush, write_private

_BOM = "\ufeff"
_EMPTY_JSON = "{\n}\n"


class Change(NamedTuple):
    """A file's content `now`, `then` (planned), and `base` (without our entries); each is None if there is no file."""

    path: Path
    is_private: bool
    now: bytes | None
    then: bytes | None
    base: bytes | None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A file's content `before` (None if there was no file) and `after` our change. `folders` had to be created."""

    path: str
    before: bytes | None
    after: bytes
    folders: tuple[str, ...] = ()


class ChangedMeanwhileError(Exception):
    """A file was modified after the change was planned."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path


class Connection:
    """One client's connection in one scope. `state` is the folder for backups and records."""

    def __init__(self, scope: Scope, state: Path) -> None:
        self._scope = scope
        self._state = state

    def connecting(self, command: Command) -> list[Change]:
        return [self._change(path, file, command) for path, file in self._scope.files()]

    def disconnecting(self) -> list[Change]:
        return [self._change(path, file, None) for path, file in self._scope.files()]

    def _change(self, path: Path, file: File, command: Command | None) -> Change:
        now = _read(path)
        record = self._record(path)
        try:
            base = _without(file, now, record)
            then = base if command is None else _with(file, now, base, command)
        except (UneditableError, UnicodeError) as error:
            what = {
                UnicodeDecodeError: "it is not UTF-8",
                UnicodeEncodeError: "a path in its entries is not UTF-8",
            }
            reason = what.get(type(error), str(error))
            raise ClientSettingsError(str(path), reason) from error
        return Change(path, self._scope.project is None, now, then, base)

    def backup(self, path: Path) -> Path:
        """Return the path of the copy of the original file, which is kept while the client is connected."""
        return self._kept(path, path.name)

    def _kept(self, path: Path, name: str) -> Path:
        digest = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:12]
        return self._state / f"{digest}-{name}"

    def _record(self, path: Path) -> Record | None:
        try:
            return msgspec.json.decode(self._kept(path, "record").read_bytes(), type=described(Record))
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def apply(self, changes: list[Change]) -> None:
        """Write the files. Durable on return. Raises `OSError` and `ChangedMeanwhileError`.

        Each file is replaced atomically. Its owner, its permissions and a symbolic link to it are preserved.
        """
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self._state / "lock"):
            for change in changes:
                _require_same(change)
            records = {change.path: self._record(change.path) for change in changes}
            folders = {
                change.path: record.folders if record is not None else tuple(_missing_folders(change.path))
                for change in changes
                for record in [records[change.path]]
            }
            for change in changes:
                if change.then != change.now:
                    self._write(change, folders[change.path])
            for change in changes:
                if change.then == change.base:
                    self._forget(change, folders[change.path])

    def _write(self, change: Change, folders: tuple[str, ...]) -> None:
        """The backup and the record are written first."""
        path = change.path
        if change.then is None:
            _require_same(change)
            Path(os.path.realpath(path)).unlink(missing_ok=True)
            return
        if change.then != change.base:
            if change.base is not None:
                write_private(self.backup(path), change.base)
            made = Record(path=str(path), before=change.base, after=change.then, folders=folders)
            write_private(self._kept(path, "record"), msgspec.json.encode(made))
        _replace(change, change.then)

    def _forget(self, change: Change, folders: tuple[str, ...]) -> None:
        if change.then is None:
            for folder in folders:
                with suppress(OSError):  # not empty
                    Path(folder).rmdir()
        self.backup(change.path).unlink(missing_ok=True)
        self._kept(change.path, "record").unlink(missing_ok=True)


def _with(file: File, now: bytes | None, base: bytes | None, command: Command) -> bytes | None:
    """Return the file with our entries. A file that contains all entries is unchanged; otherwise, all entries are
    rewritten."""
    wanted = [entry for kind in file.entries for entry in kind.wanted(command)]
    text = _parsed(file, now)
    has = Counter((_container(one), one.words) for one in _ours(file, text))
    if has == Counter((one.place, one.words) for one in wanted):
        return now
    text = _parsed(file, base)
    for entry in wanted:
        if entry.key is not None and text.find((*entry.place, entry.key)) is not None:
            name = ".".join(map(str, (*entry.place, entry.key)))
            raise UneditableError(f"{name} belongs to another program; rename or remove it first")
        text = text.added(entry.place, entry.key, entry.value)
    return _encoded(text, base)


def _container(one: Found) -> KeyPath:
    """Return the place where an entry would be added, even for a hook that shares its group with other hooks."""
    place = one.place[:-1]
    return place[:2] if place[:1] == ("hooks",) else place


def _without(file: File, now: bytes | None, record: Record | None) -> bytes | None:
    """Return the file without our entries, and without containers that become empty. Return None if there is no
    file."""
    if record is not None and now == record.after:
        return record.before
    text = _parsed(file, now)
    before = _parsed(file, record.before) if record is not None else None
    ours = list(_ours(file, text))
    if now is None or not ours:
        return now
    for one in reversed(ours):
        text = _removed(text, one.place, before)
    is_bare = (isinstance(text, JsonText) and not text.value and not text.inside(()).strip()) or not text.text.strip()
    if record is not None and is_bare and not (record.before or b"").strip():
        return record.before
    return _encoded(text, now)


def _removed(text: Text, place: KeyPath, before: Text | None) -> Text:
    text = text.removed(place)
    if isinstance(text, TomlText) or not isinstance(before, JsonText):
        return text
    above = place[:-1]
    while (node := text.node(above)) is not None and not node.items:
        there = before.node(above)
        if there is not None:
            is_same = not there.items and text.inside(above).strip() == before.inside(above).strip()
            return text.with_inside(above, before.inside(above)) if is_same else text
        if text.inside(above).strip():
            return text  # a user's comment
        text, above = text.removed(above), above[:-1]
    return text


def _ours(file: File, text: Text) -> Iterator[Found]:
    for kind in file.entries:
        yield from kind.found(text)


def _parsed(file: File, content: bytes | None) -> Text:
    text = (content or b"").decode().removeprefix(_BOM)
    return file.read(text if text.strip() or file.syntax is None else _EMPTY_JSON)


def _encoded(text: Text, like: bytes | None) -> bytes:
    mark = _BOM if like is not None and like.startswith(_BOM.encode()) else ""
    return f"{mark}{text.text}".encode()


def _read(path: Path) -> bytes | None:
    """Raises `ClientSettingsError` for a file that cannot be edited."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise ClientSettingsError(str(path), "it is not a file")
    if not os.access(path, os.W_OK):
        raise ClientSettingsError(str(path), "it is not writable")
    return path.read_bytes()


def _missing_folders(path: Path) -> Iterator[str]:
    """Yield the folders that must be created for the file, innermost first."""
    for folder in path.parents:
        if folder.exists():
            return
        yield str(folder)


def _require_same(change: Change) -> None:
    if _read(change.path) != change.now:
        raise ChangedMeanwhileError(change.path)


def _replace(change: Change, content: bytes) -> None:
    """Replace the file. Clients also write it, so a final check requires that it has not changed since planning."""
    target = Path(os.path.realpath(change.path))
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.{os.getpid()}.new")
    made.unlink(missing_ok=True)
    mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with open(os.open(made, mode, 0o600 if change.is_private else 0o666), "wb") as file:
            with suppress(FileNotFoundError):
                status = target.stat()
                with suppress(PermissionError):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _require_same(change)
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)
    flush(target.parent)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Serialises this user's `connect` and `disconnect` commands."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
