"""Test that an environment records all changes: applied to a copy, they make the copy equal to the original."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import JournalError, JournalFullError, JournalInUseError
from relay.disk import Environment, ErrorFamily, OnCommit, StoredChange, Transaction

SIZE = 1 << 22
DATABASES = ("one", "two")
ERRORS = ErrorFamily(
    failed=JournalError,
    full=JournalFullError,
    damaged=JournalError,
    in_use=JournalInUseError,
    fenced=lambda path, own, current: JournalError(path),
    is_encrypted=JournalError,
    not_encrypted=JournalError,
)

names = st.sampled_from(DATABASES)
keys = st.integers(0, 7).map(lambda number: b"%d" % number)
values = st.binary(max_size=20)
pairs = st.lists(st.tuples(keys, values), max_size=5)
Step = Callable[[Transaction], object]


def consume(transaction: Transaction, name: str, count: int) -> None:
    for _ in zip(range(count), transaction.consume(name), strict=False):
        pass


def append(transaction: Transaction, name: str, count: int) -> None:
    last = transaction.last_key(name) or b""
    transaction.append_all(name, [(last + b"%d" % number, b"appended") for number in range(count)])


steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda n, k, v, a: lambda t: t.put(n, k, v, append=a), names, keys, values, st.booleans()),
    st.builds(lambda n, p: lambda t: t.put_all(n, p), names, pairs),
    st.builds(lambda n, c: lambda t: append(t, n, c), names, st.integers(1, 3)),
    st.builds(lambda n, k: lambda t: t.delete(n, k), names, keys),
    st.builds(lambda n: lambda t: t.clear(n), names),
    st.builds(lambda n, c: lambda t: consume(t, n, c), names, st.integers(0, 5)),
)


class RolledBackError(Exception):
    """Ends a transaction without a commit."""


def opened(folder: Path, on_commit: OnCommit | None = None) -> Environment:
    return Environment.open(folder, SIZE, DATABASES, errors=ERRORS, on_commit=on_commit)


def contents(environment: Environment) -> dict[str, list[tuple[bytes, bytes]]]:
    with environment.read() as transaction:
        return {name: list(transaction.scan(name)) for name in DATABASES}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(steps, max_size=6), st.booleans()), max_size=8), st.booleans())
def test_the_changes_applied_to_another_environment_make_it_equal(
    transactions: list[tuple[list[Step], bool]], is_compacted: bool
) -> None:
    recorded: list[StoredChange] = []
    with tempfile.TemporaryDirectory() as folder:
        original = opened(Path(folder) / "original", lambda changes: recorded.extend(changes or ()))
        target = Environment.open(Path(folder) / "target", SIZE, (), errors=ERRORS)
        with closing(original), closing(target):
            for made, is_rolled_back in transactions:
                with suppress(RolledBackError), original.write() as transaction:
                    for step in made:
                        step(transaction)
                    if is_rolled_back:
                        raise RolledBackError
                if is_compacted:
                    original.compact()
            target.apply(recorded)
            expected = contents(original)
        with closing(opened(Path(folder) / "target")) as environment:
            assert contents(environment) == expected


def test_a_transaction_hands_over_its_changes_in_order_after_the_commit(tmp_path: Path) -> None:
    received: list[list[StoredChange] | None] = []
    with closing(opened(tmp_path / "environment", received.append)) as environment:
        with environment.write() as transaction:
            transaction.put("one", b"a", b"1")
            transaction.delete("one", b"missing")
            transaction.delete("one", b"a")
            transaction.clear("two")
            assert received == []
        with suppress(RolledBackError), environment.write() as transaction:
            transaction.put("one", b"b", b"2")
            raise RolledBackError
        with environment.write() as transaction:
            transaction.get("one", b"a")
    assert received == [
        [StoredChange("one", b"a", b"1"), StoredChange("one", b"a", None), StoredChange("two", None, None)]
    ]


def test_an_interrupted_hand_over_is_reported_as_unknown(tmp_path: Path) -> None:
    received: list[list[StoredChange] | None] = []

    def interrupted_once(changes: list[StoredChange] | None) -> None:
        received.append(changes)
        if changes is not None:
            raise KeyboardInterrupt

    with closing(opened(tmp_path / "environment", interrupted_once)) as environment:
        with pytest.raises(KeyboardInterrupt), environment.write() as transaction:
            transaction.put("one", b"a", b"1")
        assert contents(environment)["one"] == [(b"a", b"1")]
    assert received == [[StoredChange("one", b"a", b"1")], None]


def test_a_full_map_hands_over_nothing(tmp_path: Path) -> None:
    received: list[list[StoredChange] | None] = []
    with closing(opened(tmp_path / "environment", received.append)) as environment:
        with pytest.raises(JournalFullError), environment.write() as transaction:
            transaction.put_all("one", [(b"%d" % number, bytes(SIZE // 16)) for number in range(64)])
        assert contents(environment)["one"] == []
    assert received == []
