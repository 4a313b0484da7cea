"""Test that queries run before bulk work, by the recorded order of calls to the real model."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from witness import WAIT_S, Witness

from memory_agent.embedders import lanes as lanes_module
from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import MiniLM
from memory_agent.errors import EmbedderUnavailableError

NEVER_S = 1e6


@pytest.fixture
def witness(int8_model: MiniLM) -> Witness:
    return Witness(int8_model)


Lanes = Callable[..., LanedEmbedder]


@pytest.fixture
def lanes(witness: Witness) -> Iterator[Lanes]:
    opened: list[LanedEmbedder] = []

    def open_lanes(**options: int | float) -> LanedEmbedder:
        options.setdefault("steady_threads", 0)
        opened.append(LanedEmbedder(witness, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_lanes
    for embedder in opened:
        embedder.close()


def test_a_query_is_answered_while_a_bulk_text_is_being_embedded(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1)
    witness.hold("slow")
    bulk = embedder.submit_texts(["slow", "next"])
    witness.await_reached("slow")
    assert embedder.embed_query("urgent", timeout_s=WAIT_S).shape == (384,)
    assert not bulk.done()
    witness.release("slow")
    assert len(bulk.result(WAIT_S)) == 2


@pytest.mark.parametrize("bulk_threads", [1, 2])
def test_while_a_query_waits_at_most_one_text_a_bulk_thread_is_begun(
    witness: Witness, lanes: Lanes, bulk_threads: int
) -> None:
    embedder = lanes(bulk_threads=bulk_threads, query_threads=1, starved_s=NEVER_S)
    bulk = embedder.submit_texts([f"bulk {number}" for number in range(4_000)])
    for number in range(12):
        query = f"query {number} " + "with very many words " * 60  # as long as 20 bulk texts
        future = embedder.submit_query(query)
        queued = len(witness.events)
        future.result(WAIT_S)
        meanwhile = witness.events[queued : witness.events.index(("ended", query))]
        assert sum(what == "begun" and text.startswith("bulk") for what, text in meanwhile) <= bulk_threads
    assert not bulk.done()
    bulk.cancel()


def test_continuous_queries_do_not_stop_the_bulk_lane(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1, query_threads=1, starved_s=0.01)
    stop = threading.Event()

    def ask(name: str) -> None:
        number = 0
        while not stop.is_set():
            embedder.embed_query(f"{name} {(number := number + 1)}")

    askers = [threading.Thread(target=ask, args=(f"asker {i}",)) for i in range(3)]
    for asker in askers:
        asker.start()
    try:
        assert len(embedder.submit_texts([f"bulk {i}" for i in range(20)]).result(WAIT_S)) == 20
    finally:
        stop.set()
        for asker in askers:
            asker.join()


def test_while_the_nice_threads_are_starved_others_work_at_normal_priority(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1, steady_threads=1)
    witness.hold("slow")
    witness.hold("last")
    bulk = embedder.submit_texts(["slow", "next", "last"])
    witness.await_reached("last")
    normal = os.getpriority(os.PRIO_PROCESS, 0)
    assert [witness.niceness[text] for text in ("slow", "next", "last")] == [max(10, normal), normal, normal]
    witness.release_all()
    assert len(bulk.result(WAIT_S)) == 3


def test_a_long_text_continues_when_the_nice_threads_are_no_longer_starved(
    witness: Witness, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A low-priority thread, which sleeps while idle, continues a text begun by a thread of normal priority."""
    starved = threading.Event()
    monkeypatch.setattr(lanes_module.Pace, "is_slow", lambda _pace, _now_s: starved.is_set())
    embedder = lanes(bulk_threads=1, steady_threads=2)
    calls = {}
    for text in ("taken by the nice thread", "taken by another", LONG):
        witness.hold(text)
        calls[text] = embedder.submit_texts([text])
        witness.await_reached(text)
        starved.set()
    starved.clear()
    for asleep, text in enumerate(("taken by another", "taken by the nice thread"), 1):
        witness.release(text)
        calls[text].result(WAIT_S)
        while len(embedder._bulk_ready._waiters) < asleep:  # type: ignore[attr-defined]
            threading.Event().wait(0.01)
    witness.release(LONG)
    assert len(calls[LONG].result(WAIT_S)[0].vectors) == 5


def test_bulk_calls_take_turns(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1)
    witness.hold("long 0")
    long = embedder.submit_texts([f"long {i}" for i in range(200)])
    witness.await_reached("long 0")
    short = embedder.submit_texts([f"short {i}" for i in range(3)])
    witness.release("long 0")
    short.result(WAIT_S)
    begun = [text for what, text in witness.events if what == "begun"]
    assert begun.index("short 2") <= 7
    long.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have separate priorities only on Linux")
def test_the_bulk_lane_is_nice_and_the_query_lane_is_not(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_niceness=7)
    embedder.embed_texts(["in bulk"])
    embedder.embed_query("a query")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert witness.niceness == {"in bulk": max(7, own), "a query": own}


def test_the_same_text_is_embedded_once_within_and_across_calls(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes()
    vectors = embedder.embed_texts(["same", "other", "same"])
    again = embedder.embed_texts(["same"])
    assert np.array_equal(vectors[0], vectors[2])
    assert np.array_equal(vectors[0], again[0])
    awaited = embedder.begin_passages(["same"], timeout_s=WAIT_S).result()
    assert np.array_equal(awaited[0].vectors, again)
    assert witness.begun("same") == 1


def test_a_call_waits_for_a_text_that_another_call_is_embedding(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=2)
    witness.hold("shared")
    first = embedder.submit_texts(["shared"])
    witness.await_reached("shared")
    second = embedder.submit_texts(["shared", "own"])
    witness.release("shared")
    assert first.result(WAIT_S)[0] is second.result(WAIT_S)[0]
    assert witness.begun("shared") == 1


def test_queries_for_one_text_share_one_run(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(query_threads=2)
    witness.hold("popular")
    futures = [embedder.submit_query("popular")]
    witness.await_reached("popular")
    futures += [embedder.submit_query("popular") for _ in range(5)]
    witness.release("popular")
    assert all(future.result(WAIT_S) is futures[0].result(WAIT_S) for future in futures)
    assert witness.begun("popular") == 1


def test_the_query_cache_is_bounded_and_forgets_the_oldest(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(query_cache=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        embedder.embed_query(text)
    assert [witness.begun(text) for text in "abc"] == [1, 2, 1]


def test_a_query_cache_of_zero_keeps_nothing(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(query_cache=0)
    embedder.embed_query("again")
    embedder.embed_query("again")
    assert witness.begun("again") == 2


def test_a_query_without_an_answer_in_time_fails_and_does_not_start_later(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(query_threads=1)
    witness.hold("first")
    first = embedder.submit_query("first")
    witness.await_reached("first")
    with pytest.raises(EmbedderUnavailableError):
        embedder.embed_query("impatient", timeout_s=0.01)
    last = embedder.submit_query("last")
    witness.release("first")
    assert first.result(WAIT_S).vector.shape == last.result(WAIT_S).vector.shape == (384,)
    assert witness.begun("impatient") == 0


def test_an_expired_query_is_not_begun_and_answered_only_from_the_cache(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes()
    known = embedder.embed_query("known")
    assert np.array_equal(embedder.submit_query("known", timeout_s=-1.0).result(WAIT_S).vector, known)
    with pytest.raises(EmbedderUnavailableError, match="in time"):
        embedder.submit_query("late", timeout_s=0.0).result(WAIT_S)
    embedder.embed_query("another")
    assert witness.begun("late") == 0


def test_a_cancelled_bulk_call_is_dropped(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1)
    witness.hold("held")
    dropped = embedder.submit_texts(["held", "never 1", "never 2"])
    witness.await_reached("held")
    assert dropped.cancel()
    witness.release("held")
    embedder.embed_texts(["after"])
    assert witness.begun("never 1") == witness.begun("never 2") == 0


def test_closing_fails_waiting_callers(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1, query_threads=1)
    witness.hold("bulk held")
    witness.hold("query held")
    bulk = embedder.submit_texts(["bulk held", "left over"])
    witness.await_reached("bulk held")
    begun = embedder.submit_query("query held")
    witness.await_reached("query held")
    waiting = embedder.submit_query("left waiting")
    closer = threading.Thread(target=embedder.close)
    closer.start()
    witness.release("bulk held")
    witness.release("query held")
    closer.join(WAIT_S)
    assert begun.result(0).vector.shape == (384,)
    for future in (waiting, bulk):
        with pytest.raises(EmbedderUnavailableError, match="closed"):
            future.result(0)


def test_each_lane_has_a_thread_for_each_core(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "usable_cores", lambda: 7)
    before = threading.active_count()
    lanes(query_threads=1)
    assert threading.active_count() == before + 1 + 7
    lanes(bulk_threads=1)
    assert threading.active_count() == before + 1 + 7 + 7 + 1


LONG = "a text of several passages, each of two hundred and fifty tokens " * 80
"""A text of 960 tokens in five passages."""


def test_a_query_is_answered_between_two_passages_of_an_awaited_text(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(query_threads=1, bulk_threads=1)
    witness.hold("first")
    first = embedder.submit_query("first")
    witness.await_reached("first")
    long = embedder.submit_awaited_text(LONG, WAIT_S)
    queries = [embedder.submit_query(f"query {number}") for number in range(2)]
    witness.release("first")
    assert len(long.result(WAIT_S).vectors) == 5
    assert first.result(WAIT_S).vector.shape == queries[-1].result(0).vector.shape == (384,)
    assert witness.events.index(("ended", "query 1")) < witness.events.index(("passage", LONG))


def test_a_short_call_goes_between_the_passages_of_a_long_text(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1)
    witness.hold(LONG)
    long = embedder.submit_texts([LONG])
    witness.await_reached(LONG)
    short = embedder.submit_texts(["short 1", "short 2"])
    witness.release(LONG)
    assert [len(one.vectors) for one in (*short.result(WAIT_S), *long.result(WAIT_S))] == [1, 1, 5]
    assert witness.events.index(("ended", "short 2")) < witness.events.index(("ended", LONG))


@pytest.mark.parametrize("bulk_threads", [1, 2])
def test_a_long_text_continues_for_another_call_when_the_first_is_cancelled(
    witness: Witness, lanes: Lanes, bulk_threads: int
) -> None:
    embedder = lanes(bulk_threads=bulk_threads)
    witness.hold(LONG)
    first = embedder.submit_texts([LONG, *(f"first {number}" for number in range(50))])
    witness.await_reached(LONG)
    second = embedder.submit_texts([LONG, "own"])
    assert first.cancel()
    witness.release(LONG)
    assert [len(one.vectors) for one in second.result(WAIT_S)] == [5, 1]


def test_a_long_text_that_nobody_waits_for_is_dropped(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1)
    witness.hold(LONG)
    dropped = embedder.submit_texts([LONG, "never"])
    witness.await_reached(LONG)
    assert dropped.cancel()
    witness.release(LONG)
    embedder.embed_texts(["after"])
    assert witness.events.count(("passage", LONG)) == witness.begun("never") == 0
    assert len(embedder.embed_passages([LONG])[0].vectors) == 5


def test_closing_fails_calls_that_wait_for_a_long_text_of_another(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes(bulk_threads=1)
    witness.hold(LONG)
    calls = [embedder.submit_texts([LONG])]
    witness.await_reached(LONG)
    calls.append(embedder.submit_texts([LONG]))
    closer = threading.Thread(target=embedder.close)
    closer.start()
    witness.release(LONG)
    closer.join(WAIT_S)
    for call in calls:
        with pytest.raises(EmbedderUnavailableError, match="closed"):
            call.result(0)


def test_a_text_and_a_query_of_the_same_words_are_distinguished(witness: Witness, lanes: Lanes) -> None:
    embedder = lanes()
    query, (text,) = embedder.embed_query_words("a warm kiln"), embedder.embed_passages(["a warm kiln"])
    assert query.words == ("warm", "kiln")
    assert len(text.word_bits) == 2
    assert witness.begun("a warm kiln") == 2
