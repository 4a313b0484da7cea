"""Test the LMDB environment of journals and stores: transactions, lock, and replacement of the file while in use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from relays import NOW, event

from relay import Journal, JournalDamagedError, JournalError, JournalFullError, JournalInUseError
from relay.crypto import encrypt_in_place
from relay.disk import Environment, ErrorFamily, WriterLock
from relay.disk.environment import in_chunks

SIZE = 1 << 20


class DamagedError(Exception):
    """The caller's error type for damage."""


ERRORS = ErrorFamily(
    failed=JournalError,
    full=JournalFullError,
    damaged=DamagedError,
    in_use=JournalInUseError,
    fenced=lambda path, own, current: JournalError(path),
    is_encrypted=JournalError,
    not_encrypted=JournalError,
)


def opened(folder: Path, *further: str) -> Environment:
    return Environment.open(folder, SIZE, ("one", "two", *further), errors=ERRORS)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    environment = opened(tmp_path / "environment")
    yield environment
    environment.close()


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def fill(environment: Environment, count: int) -> None:
    with environment.write() as transaction:
        transaction.append_all("one", [(key(number), b"value %d" % number) for number in range(count)])


def numbers(environment: Environment) -> list[int]:
    with environment.read() as transaction:
        return [int.from_bytes(key, "big") for key, _ in transaction.scan("one")]


@pytest.mark.parametrize("number", [0, 2])
def test_a_key_that_is_not_the_greatest_is_not_appended_and_replaces_nothing(
    environment: Environment, number: int
) -> None:
    fill(environment, 3)
    with pytest.raises(DamagedError, match="one already contains"), environment.write() as transaction:
        transaction.append_all("one", [(key(9), b"greater"), (key(number), b"another")])
    assert numbers(environment) == [0, 1, 2]
    with environment.read() as transaction:
        assert transaction.get("one", key(number)) == b"value %d" % number


def test_a_journal_with_a_damaged_last_number_refuses_events(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal") as journal:
        journal.append([event(number) for number in range(5)], NOW)
        with journal._environment.write() as transaction:
            transaction.put("counters", b"last_seq", key(2))
        with pytest.raises(JournalDamagedError):
            journal.append([event(7)], NOW)
        assert [entry.seq for entry in journal.read(0, 10)] == [1, 2, 3, 4, 5]


def test_consumed_pairs_are_deleted_and_the_current_one_stays(environment: Environment) -> None:
    fill(environment, 5)
    taken = []
    with environment.write() as transaction:
        for found, value in transaction.consume("one"):
            if found == key(3):
                break
            transaction.put("two", found, value)  # other databases may be written during the iteration
            taken.append(value)
        assert transaction.first_key("one") == key(3)
    assert taken == [b"value 0", b"value 1", b"value 2"]
    assert numbers(environment) == [3, 4]
    with environment.write() as transaction:
        assert len(list(transaction.consume("one"))) == 2
        assert transaction.first_key("one") is None
        assert transaction.count("two") == 3


def test_no_write_is_lost_while_a_file_is_compacted(environment: Environment) -> None:
    fill(environment, 50)
    done, written = threading.Event(), []

    def write() -> None:
        while not done.is_set():
            number = 50 + len(written)
            with environment.write() as transaction:
                transaction.append_all("one", [(key(number), b"meanwhile")])
            written.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(5):
        environment.compact()
    done.set()
    thread.join()
    assert numbers(environment) == [*range(50), *written]


def test_a_compact_file_has_no_deleted_key(environment: Environment) -> None:
    """A page-by-page copy would keep deleted keys in branch pages."""
    keys = [f"erased-{(number * 7919) % 5_003:08d}".encode() for number in range(1, 3_000)]
    with environment.write() as transaction:
        for one in keys:
            transaction.put("one", one, b"value")
    with environment.write() as transaction:
        for one in keys[::2]:
            transaction.delete("one", one)
    environment.compact()
    content = (environment.path / "data.mdb").read_bytes()
    assert [one for one in keys[::2] if one in content] == []
    with environment.read() as transaction:
        assert [one for one, _ in transaction.scan("one")] == sorted(keys[1::2])


def test_long_values_are_copied_few_at_once() -> None:
    sizes = [10] * 300 + [1 << 20] * 9 + [6 << 20] + [10] * 3
    pairs = [(key(number), b"." * size) for number, size in enumerate(sizes)]
    chunks = list(in_chunks(iter(pairs)))
    assert [pair for chunk in chunks for pair in chunk] == pairs
    assert max(map(len, chunks)) == 256
    assert all(len(chunk) == 1 or sum(len(value) for _, value in chunk) <= 4 << 20 for chunk in chunks)


def test_a_file_of_another_version_with_further_databases_is_compacted_with_them(tmp_path: Path) -> None:
    folder, names = tmp_path / "environment", [f"of another version {number}" for number in range(8)]
    with closing(opened(folder, *names)) as newer, newer.write() as transaction:
        for name in ("one", *names):
            transaction.put(name, key(1), b"kept")
    with closing(opened(folder)) as former:
        former.compact()
    with closing(opened(folder, *names)) as newer, newer.read() as transaction:
        assert [transaction.count(name) for name in ("one", "two", *names)] == [1, 0, *[1] * 8]


@pytest.mark.parametrize("size", range(1, 9))
def test_a_compact_file_has_no_deleted_byte(environment: Environment, size: int) -> None:
    """The deleted value may end anywhere on a page, lie next to a remaining entry, or be long."""
    with environment.write() as transaction:
        transaction.put("one", key(0), b"k" * size)
        transaction.put("one", key(1), b"\xee" * 50)
        transaction.put("two", key(0), b"\xee" * 10_000)
    with environment.write() as transaction:
        transaction.delete("one", key(1))
        transaction.put("two", key(0), b"kept" * 2_000)
    file = environment.path / "data.mdb"
    assert b"\xee\xee" in file.read_bytes()
    environment.compact()
    assert b"\xee\xee" not in file.read_bytes()
    assert numbers(environment) == [0]


def test_a_writer_lock_names_its_owner_and_is_free_again_after_release(tmp_path: Path) -> None:
    lock = WriterLock.take(tmp_path, ERRORS)
    with pytest.raises(JournalInUseError, match="process") as caught:
        WriterLock.take(tmp_path, ERRORS)
    assert caught.value.path == str(tmp_path)
    lock.release()
    lock.release()
    WriterLock.take(tmp_path, ERRORS).release()


def test_a_rewritten_copy_that_lacks_a_pair_is_not_put_in_place(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(environment, 3)
    from relay.disk.transaction import Transaction

    put = Transaction.put

    def forgetful(self: Transaction, database: str, found: bytes, value: bytes, *, append: bool = False) -> None:
        if found != key(1):
            put(self, database, found, value, append=append)

    monkeypatch.setattr(Transaction, "put", forgetful)
    with pytest.raises(DamagedError, match="the copy of one differs from the original"):
        encrypt_in_place(environment, opened, lambda ours: (("one", *pair) for pair in ours.scan("one")))
    assert numbers(environment) == [0, 1, 2]


def test_an_environment_is_rewritten_whole(environment: Environment) -> None:
    fill(environment, 3)
    encrypt_in_place(environment, opened, lambda ours: (("two", found, found) for found, _ in ours.scan("one")))
    again = opened(environment.path)
    with again.read() as transaction:
        assert (transaction.count("one"), dict(transaction.scan("two"))) == (0, {key(n): key(n) for n in range(3)})
    again.close()
