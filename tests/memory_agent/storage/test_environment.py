from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memory_agent.errors import StoreDamagedError, StoreError, StoreFullError
from memory_agent.storage.environment import open_environment
from relay.disk import Environment

NAMES = ("one", "two")
SIZE = 1 << 20


@pytest.fixture
def environment(tmp_path: Path):  # type: ignore[no-untyped-def]
    opened = open_environment(tmp_path / "env", SIZE, NAMES)
    yield opened
    opened.close()


def test_committed_data_survives_reopening(tmp_path: Path) -> None:
    environment = open_environment(tmp_path, SIZE, NAMES)
    with environment.write() as transaction:
        transaction.put("one", b"key", b"value")
    environment.close()
    again = open_environment(tmp_path, SIZE, NAMES)
    with again.read() as transaction:
        assert transaction.get("one", b"key") == b"value"
        assert transaction.get("two", b"key") is None
    again.close()


def test_a_transaction_that_raises_leaves_nothing(environment: Environment) -> None:
    with pytest.raises(ZeroDivisionError), environment.write() as transaction:  # noqa: PT012
        transaction.put("one", b"key", b"value")
        1 / 0  # noqa: B018
    with environment.read() as transaction:
        assert transaction.count("one") == 0


def test_keys_come_in_order_both_ways_and_from_a_start(environment: Environment) -> None:
    with environment.write() as transaction:
        for key in (b"c", b"a", b"d", b"b"):
            transaction.put("one", key, key.upper(), append=True)  # the append hint is wrong for half of the keys
    with environment.read() as transaction:
        assert [key for key, _ in transaction.scan("one")] == [b"a", b"b", b"c", b"d"]
        assert [value for _, value in transaction.scan("one", b"bb")] == [b"C", b"D"]
        assert [key for key, _ in transaction.scan("one", b"b", reverse=True)] == [b"d", b"c", b"b"]
        assert transaction.last_key("one") == b"d"
        assert transaction.last_key("two") is None


def test_appending_a_known_key_replaces_its_value(environment: Environment) -> None:
    with environment.write() as transaction:
        transaction.put("one", b"a", b"1", append=True)
        transaction.put("one", b"a", b"2", append=True)
        assert transaction.get("one", b"a") == b"2"
        assert transaction.delete("one", b"a")
        assert not transaction.delete("one", b"a")


def test_a_full_map_is_an_error_that_leaves_the_environment_usable(environment: Environment) -> None:
    with environment.write() as transaction:
        transaction.put("one", b"kept", b"value")
    with pytest.raises(StoreFullError) as caught, environment.write() as transaction:  # noqa: PT012
        for number in range(1_000):
            transaction.put("one", number.to_bytes(4, "big"), bytes(4_000))
    assert caught.value.limit_bytes == SIZE
    with environment.write() as transaction:
        assert transaction.count("one") == 1
        assert transaction.delete("one", b"kept")


def test_a_file_that_was_cut_short_is_refused_instead_of_killing_the_process(tmp_path: Path) -> None:
    environment = open_environment(tmp_path, SIZE, NAMES)
    with environment.write() as transaction:
        for number in range(50):
            transaction.put("one", number.to_bytes(4, "big"), bytes(4_000))
    environment.close()
    os.truncate(tmp_path / "data.mdb", 40_000)
    with pytest.raises(StoreDamagedError):
        open_environment(tmp_path, SIZE, NAMES)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(os.urandom(100_000))
    with pytest.raises(StoreDamagedError):
        open_environment(tmp_path, SIZE, NAMES)


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        open_environment(tmp_path / "file" / "env", SIZE, NAMES)


def test_a_child_made_by_fork_is_refused(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from memory_agent.storage.environment import open_environment
from relay.disk import Environment
from memory_agent.errors import StoreError
environment = open_environment(Path({str(tmp_path)!r}), {SIZE}, ("one",))
child = os.fork()
if not child:
    try:
        with environment.write():
            os._exit(1)
    except StoreError:
        os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_child_made_by_fork_is_refused_while_another_thread_of_its_parent_writes(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys, threading
from pathlib import Path
from memory_agent.storage.environment import open_environment
from memory_agent.errors import StoreError
environment = open_environment(Path({str(tmp_path)!r}), {SIZE}, ("one",))
began, may_end = threading.Event(), threading.Event()
def write():
    with environment.write():
        began.set()
        may_end.wait(60.0)
thread = threading.Thread(target=write)
thread.start()
began.wait(60.0)
child = os.fork()
if not child:
    signal.alarm(10)  # ends a child that waits for a lock held by a thread that it does not have
    try:
        with environment.write():
            os._exit(1)
    except StoreError:
        os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
may_end.set()
thread.join()
sys.exit(status)
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0


def test_the_slots_of_dead_readers_are_freed(tmp_path: Path, environment: Environment) -> None:
    code = f"""
import os
from pathlib import Path
from memory_agent.storage.environment import open_environment
from relay.disk import Environment
environment = open_environment(Path({str(environment.path)!r}), {SIZE}, ("one",))
with environment.read():
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert environment.clear_dead_readers() == 1


def test_a_copy_holds_the_same(tmp_path: Path, environment: Environment) -> None:
    with environment.write() as transaction:
        transaction.put("two", b"key", b"value")
    (tmp_path / "copy").mkdir()
    environment.copy(tmp_path / "copy")
    copy = open_environment(tmp_path / "copy", SIZE, NAMES)
    with copy.read() as transaction:
        assert transaction.get("two", b"key") == b"value"
    copy.close()


def test_only_the_owner_of_the_files_may_read_them(environment: Environment) -> None:
    assert environment.path.stat().st_mode & 0o077 == 0
    assert (environment.path / "data.mdb").stat().st_mode & 0o077 == 0


def test_a_reader_sees_commits_and_cannot_write(environment: Environment) -> None:
    code = f"""
import sys
from pathlib import Path
from memory_agent.storage.environment import open_environment
from relay.disk import Environment
from memory_agent.errors import StoreError
reader = open_environment(Path({str(environment.path)!r}), {SIZE}, ("one",), readonly=True)
with reader.read() as transaction:
    assert transaction.get("one", b"key") == b"value"
try:
    with reader.write():
        sys.exit(1)
except StoreError:
    sys.exit(0)
"""
    with environment.write() as transaction:
        transaction.put("one", b"key", b"value")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reading_a_missing_environment_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        open_environment(tmp_path / "none", SIZE, NAMES, readonly=True)
    assert not (tmp_path / "none").exists()
