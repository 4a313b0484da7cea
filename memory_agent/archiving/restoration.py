"""Restores the newest state of a user's store from the archive.

Starts at the newest epoch that has objects, follows the chain of bases back to a snapshot, and applies all later
increments in one transaction. A failed attempt is repeated, because a listing can be inconsistent.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from memory_agent.archiving import chain
from memory_agent.archiving.objects import Objects, make_folders
from memory_agent.errors import ArchiveDamagedError, FencedError, InvalidInputError, StoreError
from memory_agent.records.placement import Position
from memory_agent.settings import StoreSettings
from memory_agent.storage.environment import STORE_ERRORS, open_environment
from relay.disk import DATA_FILE, StoredChange, flush, flush_tree

_TRIES = 3
_SEAL_TRIES = 20
_AT_ONCE = 64  # objects read concurrently; their total size is at most about half a snapshot
_COPIED_BYTES = 1 << 20

_Object = tuple[Position, chain.Kind]


def restore(
    objects: Objects,
    user_id: str,
    target: Path,
    at_least: Position | None = None,
    settings: StoreSettings | None = None,
    since: int = 0,
) -> chain.Restored | None:
    """Write the newest archived state into the folder `target`, which must not exist. Durable on return.

    `target` is the folder of the records. Objects of epochs before `since` are ignored. Returns None if there is no
    archive and `at_least` is None. Raises `ArchiveDamagedError` if objects are missing or damaged, or if the newest
    state is older than `at_least`. Also raises `ArchiveUnavailableError`, `StoreFullError` and `StoreError`. Needs no
    encryption key.
    """
    if target.exists():
        raise InvalidInputError("target", f"{target} already exists")
    partial = target.with_name(f".{target.name}.restoring")
    map_size_bytes = (settings or StoreSettings()).map_size_bytes
    try:
        make_folders(target.parent)
        for attempt in range(_TRIES):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(mode=0o700)
            try:
                restored = _Restoration(objects, user_id, partial, map_size_bytes, since).run()
                _require_recent(user_id, restored, at_least)
                break
            except (FileNotFoundError, ArchiveDamagedError) as error:
                if attempt == _TRIES - 1:
                    if isinstance(error, ArchiveDamagedError):
                        raise
                    raise ArchiveDamagedError(f"the archive of {user_id} lacks the object {error}") from error
        if restored is not None:
            flush_tree(partial)
            partial.rename(target)
            flush(target.parent)
    except OSError as error:
        raise STORE_ERRORS.of_system(error, target, map_size_bytes) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return restored


def restore_derived(objects: Objects, restored: chain.Restored, folder: Path) -> None:
    """Write the newest derived files of a restored state into `folder`, without verifying them. Raises the errors of
    `Objects.get_file`.
    """
    for last in (restored.position, *restored.continued):
        found = ((name, chain.parse_derived(name)) for name in objects.names(last.epoch))
        files = [(*one, name) for name, one in found if one is not None and one[0] <= last.number]
        newest = max((number for number, _, _ in files), default=None)
        for number, file, name in files:
            if number == newest:
                objects.get_file(last.epoch, name, folder / file)
        if newest is not None:
            return


def _require_recent(user_id: str, restored: chain.Restored | None, at_least: Position | None) -> None:
    if at_least is not None and (restored is None or restored.position < at_least):
        newest = "there is none" if restored is None else f"the newest is {restored.position}"
        raise ArchiveDamagedError(f"the archive of {user_id} must contain the state {at_least}, but {newest}")


def newest_epoch(objects: Objects) -> int:
    return next((epoch for epoch in reversed(objects.epochs()) if objects.names(epoch)), 0)


def begun_by(objects: Objects, user_id: str, epoch: int) -> bytes | None:
    """Return the owner that began an epoch (`take_over`), or None if the epoch contains more than its first object."""
    base = chain.object_name(0, "base")
    if objects.names(epoch) != [base]:
        return None
    content = objects.get(epoch, [base])[0]
    return chain.read_owner(chain.read_body(content, chain.read_header(content, "base", Position(epoch, 0), user_id)))


def take_over(objects: Objects, user_id: str, epoch: int, owner: bytes) -> chain.Header:
    """End an epoch and begin the next one; return the header of its first object. `epoch` is the newest epoch, or 0.

    For archives without a lease. Writes an empty increment with the epoch's next number. The next flush by the epoch's
    owner then fails, and everything that the owner acknowledged earlier is in the archive. Raises `FencedError` if
    another machine takes over, and `StoreError` if the owner writes first in every attempt.
    """
    continued, digest = Position(0, 0), chain.NO_PREVIOUS
    if epoch:
        sealed = _sealed(objects, user_id, epoch)
        continued, digest = sealed.position, sealed.digest
    header, content = chain.make_object(
        "base", Position(epoch + 1, 0), user_id, chain.base_body(continued, owner), digest
    )
    is_first = objects.create(epoch + 1, chain.object_name(0, "base"), content)
    if not is_first or (newest := newest_epoch(objects)) != epoch + 1:
        raise FencedError(f"the archive of {user_id}", epoch + 1, epoch + 1 if not is_first else newest)
    return header


def _sealed(objects: Objects, user_id: str, epoch: int) -> chain.Header:
    for _ in range(_SEAL_TRIES):
        parts = _of_epoch(objects, epoch)
        if not parts:
            raise FencedError(f"the archive of {user_id}", epoch, newest_epoch(objects))
        last, kind = parts[-1]
        try:
            start = objects.get_start(epoch, chain.object_name(last.number, kind), chain.HEADER_BYTES)
        except FileNotFoundError:  # a snapshot has replaced it
            continue
        previous = chain.read_header(start, kind, last, user_id)
        position = Position(epoch, last.number + 1)
        header, content = chain.make_object("increment", position, user_id, chain.increment_body([]), previous.digest)
        if objects.create(epoch, chain.object_name(position.number, "increment"), content) and all(
            kind != "snapshot" or place < position for place, kind in _of_epoch(objects, epoch)
        ):
            return header  # otherwise, the owner wrote this number first, or continued with a snapshot
    raise StoreError(f"the archive of {user_id} is in use: another machine still writes to it")


class _Restoration:
    """One attempt to restore into an empty folder."""

    def __init__(self, objects: Objects, user_id: str, folder: Path, map_size_bytes: int, since: int) -> None:
        self._since = since
        self._objects = objects
        self._user_id = user_id
        self._folder = folder
        self._map_size_bytes = map_size_bytes
        self._last: chain.Header | None = None
        self._increment_bytes = 0
        self._continued: list[Position] = []

    def run(self) -> chain.Restored | None:
        """Raises `FileNotFoundError` if an object disappears."""
        links = self._chain()
        if not links:
            return None
        self._last = snapshot = self._take_snapshot(links[0])
        if links[1:]:
            with closing(open_environment(self._folder, self._map_size_bytes)) as environment:
                environment.apply(self._changes(links[1:]))
            (self._folder / "lock.mdb").unlink()
        last, continued = self._last, tuple(self._continued)
        return chain.Restored(
            last.position, last.digest, snapshot.body_bytes, len(links) - 1, self._increment_bytes, continued
        )

    def _chain(self) -> list[_Object]:
        """Return the objects to read, oldest first: a snapshot, then increments and bases."""
        epochs = self._epochs()
        found = next((parts for epoch in reversed(epochs) if (parts := _of_epoch(self._objects, epoch))), [])
        if not found and epochs != self._epochs():  # a new owner has replaced what was listed
            raise FileNotFoundError(f"of the epochs {epochs}")
        links = self._since_start(found)
        while links and links[0][1] == "base":
            body, header = self._read(links[0], self._objects.get(*_place(links[0]))[0])
            continued = chain.read_base(body, header)
            if not continued.epoch:
                return []  # the first owner has written nothing yet
            earlier = [part for part in _of_epoch(self._objects, continued.epoch) if part[0] <= continued]
            if not earlier or earlier[-1][0] != continued:
                raise ArchiveDamagedError(f"object {links[0][0]} continues {continued}, which is missing")
            self._continued.append(continued)
            links = self._since_start(earlier, header.previous) + links
        return links

    def _header(self, part: _Object) -> chain.Header:
        epoch, (name,) = _place(part)
        return chain.read_header(
            self._objects.get_start(epoch, name, chain.HEADER_BYTES), part[1], part[0], self._user_id
        )

    def _epochs(self) -> list[int]:
        return [epoch for epoch in self._objects.epochs() if epoch >= self._since]

    def _since_start(self, parts: Sequence[_Object], next_links_to: bytes | None = None) -> list[_Object]:
        """Return the last snapshot and what follows it, or all objects of an epoch that begins with a base.

        `next_links_to` is the digest in the object that follows the returned objects. A snapshot may have the same
        number as another object. If an owner was superseded (`take_over`), no object links to the owner's snapshot.
        """
        used: list[_Object] = []
        positions = [position for position, _ in parts]
        for part in reversed(parts):
            position, kind = part
            if kind == "snapshot" and positions.count(position) > 1:
                link = self._header(used[-1]).previous if used else next_links_to
                if link not in (None, self._header(part).digest):
                    continue
            used.append(part)
            if kind == "snapshot":
                break
        used.reverse()
        first = used[0][0].number if used else 0
        for place, (position, kind) in enumerate(used):
            is_start = kind == "snapshot" or (kind == "base" and position.number == 0)
            if position.number != first + place or is_start != (place == 0):
                raise ArchiveDamagedError(f"an object before {position}.{kind} is missing")
        return used

    def _take_snapshot(self, snapshot: _Object) -> chain.Header:
        content = self._folder / "object"
        epoch, (name,) = _place(snapshot)
        self._objects.get_file(epoch, name, content)
        digest = sha256()
        with content.open("rb") as source, (self._folder / DATA_FILE).open("xb") as target:
            header = chain.read_header(source.read(chain.HEADER_BYTES), snapshot[1], snapshot[0], self._user_id)
            while chunk := source.read(_COPIED_BYTES):
                digest.update(chunk)
                target.write(chunk)
            if target.tell() != header.body_bytes or digest.digest() != header.body_sha256:
                raise ArchiveDamagedError(f"object {header.position}.snapshot is damaged")
        (self._folder / DATA_FILE).chmod(0o600)
        content.unlink()
        return header

    def _changes(self, links: Sequence[_Object]) -> Iterator[StoredChange]:
        """Yield the changes from all increments, after checking each object's link to the previous object."""
        while links:
            epoch = links[0][0].epoch
            group = [part for part in links[:_AT_ONCE] if part[0].epoch == epoch]
            contents = self._objects.get(epoch, [chain.object_name(part[0].number, part[1]) for part in group])
            for part, content in zip(group, contents, strict=True):
                body, header = self._read(part, content)
                if self._last is None or header.previous != self._last.digest:
                    named = f"{header.position}.{header.kind}"
                    raise ArchiveDamagedError(f"object {named} does not follow the previous object")
                self._last = header
                self._increment_bytes += len(content)
                if header.kind == "increment":
                    yield from chain.read_changes(body, header)
            links = links[len(group) :]

    def _read(self, part: _Object, content: bytes) -> tuple[memoryview, chain.Header]:
        header = chain.read_header(content, part[1], part[0], self._user_id)
        return chain.read_body(content, header), header


def _of_epoch(objects: Objects, epoch: int) -> list[_Object]:
    """Return the objects of an epoch in order. If two have the same number, the snapshot comes second."""
    found = (chain.parse_name(name) for name in objects.names(epoch))
    return sorted((Position(epoch, name[0]), name[1]) for name in found if name is not None)


def _place(part: _Object) -> tuple[int, list[str]]:
    position, kind = part
    return position.epoch, [chain.object_name(position.number, kind)]
