"""An archived user environment, and an in-memory object store that can be made to fail."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Literal

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from memory_agent.archiving import Limits, Objects, ObjectStore, Restored, UserArchive
from memory_agent.settings import ArchiveSettings
from memory_agent.storage.environment import open_environment
from relay.disk import Environment

SIZE = 8 << 20
DATABASES = ("one", "two")
USER = "alice"
FREQUENT = Limits(pending_bytes=2_000, increments=4, share=2.0, least_bytes=0, check_s=0.0)

Fault = Literal["none", "refused", "reply lost"]
Contents = dict[str, list[tuple[bytes, bytes]]]


class FaultyFileSystem(MemoryFileSystem):
    """An in-memory file system whose next writes and deletions fail as listed in `faults`."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[Fault]] = []
    blocked: ClassVar[threading.Event | None] = None
    """If set, every operation waits for this event."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("faulty://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with _failing():
            super().pipe_file(path, value, mode, **options)

    def put_file(self, lpath: str, rpath: str, *further: Any, **options: Any) -> None:
        content = Path(lpath).read_bytes()
        with _failing():
            super().pipe_file(rpath, content)

    def rm_file(self, path: str) -> None:
        with _failing():
            super().rm_file(path)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if FaultyFileSystem.blocked is not None:
            FaultyFileSystem.blocked.wait()
        return super().ls(path, detail, **options)


class _failing:  # noqa: N801 - used like a function
    def __enter__(self) -> None:
        if FaultyFileSystem.blocked is not None:
            FaultyFileSystem.blocked.wait()
        self._fault: Fault = FaultyFileSystem.faults.pop(0) if FaultyFileSystem.faults else "none"
        if self._fault == "refused":
            raise PermissionError("refused")

    def __exit__(self, *_: object) -> None:
        if self._fault == "reply lost":
            raise ConnectionError("reply lost")


def clear_faulty() -> None:
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FaultyFileSystem.store.clear()
    FaultyFileSystem.pseudo_dirs[:] = [""]
    FaultyFileSystem.faults.clear()
    FaultyFileSystem.blocked = None


def faulty_objects() -> Objects:
    return ObjectStore.open(ArchiveSettings(url="faulty://bucket")).of_user(USER)


def local_objects(folder: Path) -> Objects:
    return ObjectStore.open(ArchiveSettings(url=f"file://{folder}")).of_user(USER)


def files(folder: Path) -> list[Path]:
    """Return the files under a folder, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Owner:
    """A machine that owns the user's environment under an epoch, and archives the environment."""

    def __init__(
        self,
        objects: Objects,
        folder: Path,
        epoch: int,
        continues: Restored | None = None,
        limits: Limits = FREQUENT,
    ) -> None:
        self.columns = folder / "columns.arrays"
        self.archive = UserArchive(objects, USER, epoch, folder / "scratch", limits)
        self.environment = open_environment(folder / "records", SIZE, DATABASES, on_commit=self.archive.note)
        self.put("one", b"epoch", b"%d" % epoch)  # as claiming a store does
        self.archive.start(lambda target: self.environment.copy(target, clears_unused=True), continues, [self.columns])

    def put(self, database: str, key: bytes, value: bytes) -> None:
        with self.environment.write() as transaction:
            transaction.put(database, key, value)

    def write_columns(self, text: str) -> None:
        """Replace the derived file."""
        new = self.columns.with_suffix(".new")
        new.write_text(text)
        new.replace(self.columns)

    def contents(self) -> Contents:
        return contents(self.environment)

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        self.environment.close()


def contents(environment: Environment) -> Contents:
    with environment.read() as transaction:
        return {name: list(transaction.scan(name)) for name in DATABASES}


def contents_of(folder: Path) -> Contents:
    """Return what a restored folder of records contains."""
    with closing(open_environment(folder, SIZE, DATABASES, readonly=True)) as environment:
        return contents(environment)
