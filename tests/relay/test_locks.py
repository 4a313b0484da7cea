"""Test the read/write lock: readers share it; writers hold it exclusively and have priority."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from relay.locks import ReadWriteLock


def test_readers_share_and_may_nest_while_a_writer_waits() -> None:
    lock, writing = ReadWriteLock(), threading.Event()

    def write() -> None:
        with lock.exclusive(10.0):
            writing.set()

    with ThreadPoolExecutor() as pool:
        with lock.shared():
            writer = pool.submit(write)
            while lock._writer is None:  # now the writer waits, so a new reader would wait too
                pass
            with lock.shared():
                assert not writing.is_set()
        writer.result(10.0)
    assert writing.is_set()


def test_a_writer_times_out_and_readers_continue() -> None:
    lock = ReadWriteLock()
    with ThreadPoolExecutor() as pool, lock.shared():

        def write() -> None:
            with lock.exclusive(0.01):
                raise AssertionError("entered beside a reader")

        with pytest.raises(TimeoutError):
            pool.submit(write).result(10.0)
    with lock.exclusive(), ThreadPoolExecutor() as pool, pytest.raises(TimeoutError):
        pool.submit(lock.exclusive(0.01).__enter__).result(10.0)


def test_writers_exclude_each_other() -> None:
    lock, inside, most = ReadWriteLock(), [0], [0]

    def write() -> None:
        for _ in range(200):
            with lock.exclusive():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1
            with lock.shared():
                assert inside[0] == 0

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write) for _ in range(4)]:
            done.result(60.0)
    assert most == [1]
