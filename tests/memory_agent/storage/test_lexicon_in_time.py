"""A read of the lexicon ends at its caller's deadline, running or waiting, without being taken for damage."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from samples import memory

from memory_agent.errors import DeadlineExceededError
from memory_agent.storage.lexicon import Lexicon

MEMORIES = 5_000
WAIT_S = 60.0


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lexicon]:
    """Read-only. Each memory shares a word with the query, so a search takes many steps."""
    with Lexicon.fresh(tmp_path_factory.mktemp("in-time") / "lexicon.sqlite") as lexicon:
        records = ((row, memory(f"mutex number {row}")) for row in range(1, MEMORIES + 1))
        lexicon.rebuild(records, through=1, lineage="one")
        yield lexicon


def test_a_search_ends_at_the_deadline_and_the_next_one_is_whole(lexicon: Lexicon) -> None:
    with lexicon.until(time.monotonic()), pytest.raises(DeadlineExceededError):
        lexicon.search("mutex", MEMORIES)
    assert len(lexicon.search("mutex", MEMORIES)[0]) == MEMORIES


def test_found_rows_can_be_read_after_the_deadline(lexicon: Lexicon) -> None:
    with lexicon.until(time.monotonic() - 1.0):
        assert sorted(lexicon.times(np.arange(1, 31))) == list(range(1, 31))


def test_a_deadline_is_that_of_its_thread(lexicon: Lexicon) -> None:
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(len(lexicon.search("mutex", MEMORIES)[0])))
    with lexicon.until(time.monotonic()):
        other.start()
        other.join(WAIT_S)
    assert found == [MEMORIES]


def test_a_read_that_waits_for_another_one_waits_until_its_deadline(lexicon: Lexicon) -> None:
    with lexicon._reading, lexicon.until(time.monotonic() + 0.01), pytest.raises(DeadlineExceededError):
        lexicon.search("mutex", 1)
    assert len(lexicon.search("mutex", 1)[0]) == 1
