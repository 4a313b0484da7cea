"""Test that a restored store contains everything committed before the last flush, despite failures and other owners."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from archives import Contents, Fault, FaultyFileSystem, Owner, clear_faulty, contents_of, faulty_objects
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.archiving import restore
from memory_agent.errors import ArchiveUnavailableError, FencedError
from memory_agent.records.placement import Position

Act = tuple[Literal["write", "flush", "renew", "compact", "move", "earlier owner"], tuple[Fault, ...], int]

faults = st.lists(st.sampled_from(["none", "none", "refused", "reply lost"]), max_size=3).map(tuple)
acts = st.tuples(
    st.sampled_from(["write", "flush", "flush", "flush", "flush", "renew", "compact", "move", "earlier owner"]),
    faults,
    st.integers(0, 40),
)


class Machines:
    """The current owner, the previous owner (which still writes), and the contents that a restoration may find."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._count = 0
        self.owner = self._stack.enter_context(Owner(faulty_objects(), folder / "first", 1))
        self.earlier: Owner | None = None
        self.allowed: list[Contents | None] = [None]
        self.at_least: Position | None = None

    def write(self, owner: Owner, number: int) -> None:
        with owner.environment.write() as transaction:
            name = "one" if number % 2 else "two"
            if number % 7 == 0:
                transaction.clear(name)
            elif number % 5 == 0:
                transaction.delete(name, b"%d" % (number % 6))
            else:
                transaction.put(name, b"%d" % (number % 6), b"value " * number * 4)
                transaction.put_all("one", [(b"a%d" % number, b"x"), (b"b", b"%d" % number)])

    def flush(self, *, is_renewal: bool) -> None:
        archive, committed = self.owner.archive, self.owner.contents()
        try:
            position = archive.renew() if is_renewal else archive.flush()
        except ArchiveUnavailableError:
            self.allowed.append(committed)
        else:
            assert self.at_least is None or position >= self.at_least
            self.allowed, self.at_least = [committed], position

    def move(self) -> None:
        """Restore on another machine, which becomes the owner without the previous machine being notified."""
        self._count += 1
        folder = self._folder / str(self._count)
        restored = restore(faulty_objects(), "alice", folder / "records", self.at_least)
        assert (contents_of(folder / "records") if restored else None) in self.allowed
        self.earlier = self.owner
        self.owner = self._stack.enter_context(Owner(faulty_objects(), folder, 2 + self._count, restored))
        self.flush(is_renewal=False)

    def earlier_owner_writes(self, number: int) -> None:
        if self.earlier is not None:
            self.write(self.earlier, number)
            with suppress(ArchiveUnavailableError, FencedError):
                _ = self.earlier.archive.renew() if number % 2 else self.earlier.archive.flush()

    def close(self) -> None:
        self._stack.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(acts, min_size=8, max_size=24))
def test_a_restoration_finds_the_last_flush(made: list[Act]) -> None:
    clear_faulty()
    with tempfile.TemporaryDirectory() as folder:
        machines = Machines(Path(folder))
        try:
            for act, planned, number in made:
                FaultyFileSystem.faults[:] = [] if act == "move" else planned
                if act in ("write", "flush"):
                    machines.write(machines.owner, number)
                elif act == "compact":
                    machines.owner.environment.compact()
                elif act == "move":
                    machines.move()
                elif act == "earlier owner":
                    machines.earlier_owner_writes(number)
                if act in ("flush", "renew"):
                    machines.flush(is_renewal=act == "renew")
            FaultyFileSystem.faults.clear()
            machines.move()
        finally:
            machines.close()
