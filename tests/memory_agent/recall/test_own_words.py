"""A recall omits the caller's own words: the causing event, the run, the session's last minutes, and echoes of the
query.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_samples import NOW, message, open_without_model, texts

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import Exclusion, MemoryFilter, Mode, RecallResult
from memory_agent.settings import LearningSettings, RecallSettings, StoreSettings

ASKED = "Why does the nightly backup of the orders database fail?"
CAUSE = "The nightly backup fails because the disk of the replica is full"
MODES: tuple[Mode, ...] = get_args(Mode)
WEEK = timedelta(days=7)


def ago(minutes: float, now: datetime = NOW) -> str:
    return (now - timedelta(minutes=minutes)).isoformat()


def said(event_id: str, minutes_ago: float, text: str = ASKED, **fields: Any) -> dict[str, Any]:
    """Return the event for a message that a user sent this many minutes ago, by default without a session."""
    fields = {"session_id": None} | fields
    return message(0, text, event_id=event_id, timestamp=ago(minutes_ago), **fields)


def begun(event_id: str, minutes_ago: float, run_id: str, text: str = ASKED) -> dict[str, Any]:
    payload = {"objective": text, "run_id": run_id}
    return said(event_id, minutes_ago, event_type="conductor.run.started", payload=payload)


def recall(memory: Memory, query: str = ASKED, filter: MemoryFilter | None = None, **options: Any) -> RecallResult:
    return memory.recall(query, 10, filter, deadline_ms=60_000, **({"now": NOW} | options))


def events(result: RecallResult) -> list[str | None]:
    return sorted(found.record.event_id or "" for found in result.memories)


@pytest.fixture
def told(memory: Memory) -> Memory:
    """A memory that contains the answer, from an old session."""
    memory.ingest([said("cause", 7 * 24 * 60, CAUSE, session_id="s-old")], now=NOW)
    return memory


@pytest.mark.parametrize("mode", MODES)
def test_a_message_is_not_an_answer_to_itself(told: Memory, mode: Mode) -> None:
    told.ingest([said("echo", 0)], now=NOW)
    result = recall(told, mode=mode)
    assert (texts(result), result.excluded, result.degraded) == ([CAUSE], {"echo": 1}, ())


@pytest.mark.parametrize("mode", MODES)
def test_the_answer_is_the_same_before_and_after_the_message_arrives(told: Memory, mode: Mode) -> None:
    # A minimum relevance could hide the echo too.
    own = {"by_event": "echo", "by_session": "s-1", "by_run": "r-1", "min_relevance": 0}
    before = recall(told, mode=mode, **own)
    told.ingest([said("echo", 0, session_id="s-1"), begun("plan", 0, "r-1")], now=NOW)
    after = recall(told, mode=mode, **own)
    assert [(one.record.id, one.score, one.sona_score) for one in before.memories] == [
        (one.record.id, one.score, one.sona_score) for one in after.memories
    ]
    assert (before.excluded, after.excluded) == ({}, {"event": 1, "run": 1})


def test_a_message_is_not_an_answer_to_itself_without_a_model(tmp_path: Path) -> None:
    with open_without_model(tmp_path / "alice") as memory:
        memory.ingest([said("cause", 9_999, CAUSE), said("echo", 0)], now=NOW)
        result = recall(memory)
        assert (texts(result), result.excluded) == ([CAUSE], {"echo": 1})


def test_the_same_text_of_last_week_is_an_answer_and_folded_without_the_echo(told: Memory) -> None:
    told.ingest([said("former", 7 * 24 * 60), said("later", 24 * 60), said("echo", 1)], now=NOW)
    (same,) = [found for found in recall(told).memories if found.record.text == ASKED]
    assert (same.record.event_id, same.count) == ("later", 2)
    assert (same.first_seen, same.last_seen) == (NOW - WEEK, NOW - timedelta(days=1))
    assert [origin.id for origin in same.origins] == [
        found.record.id for found in recall(told, filter=MemoryFilter(until=NOW - timedelta(days=2))).memories
        if found.record.text == ASKED
    ]  # fmt: skip


def test_a_question_repeated_after_three_minutes_returns_neither_message(told: Memory) -> None:
    told.ingest([said("first", 3, session_id="s-1"), said("again", 0, session_id="s-1")], now=NOW)
    named = recall(told, by_session="s-1", by_event="again")
    assert (events(named), named.excluded) == (["cause"], {"event": 1, "session": 1})
    unnamed = recall(told)
    assert (events(unnamed), unnamed.excluded) == (["cause"], {"echo": 2})


def test_the_last_minutes_of_the_calling_session_are_left_out_and_no_others(told: Memory) -> None:
    earlier = "The nightly backup runs at two"
    told.ingest(
        [
            said("before", 11, earlier, session_id="s-1"),
            said("just", 9, "The nightly backup is a cron job", session_id="s-1"),
            said("clock", -1, "The nightly backup writes to the replica", session_id="s-1"),
            said("elsewhere", 9, "The nightly backup is owned by Ann", session_id="s-2"),
        ],
        now=NOW + timedelta(minutes=2),
    )
    result = recall(told, by_session="s-1")
    assert (events(result), result.excluded) == (["before", "cause", "elsewhere"], {"session": 2})
    assert events(recall(told)) == ["before", "cause", "clock", "elsewhere", "just"]
    assert events(recall(told, by_session="unknown")) == events(recall(told))


def test_the_same_request_in_another_named_session_is_no_echo(told: Memory) -> None:
    told.ingest([said("other", 2, session_id="s-2"), said("nowhere", 2)], now=NOW)
    result = recall(told, by_session="s-1")
    assert (events(result), result.excluded) == (["cause", "other"], {"echo": 1})


def test_a_memory_stored_by_hand_is_found_by_its_own_text(memory: Memory) -> None:
    by_hand = memory.remember(ASKED, "episode", now=NOW)
    assert [found.record.id for found in recall(memory).memories] == [by_hand.id]


def test_a_report_in_the_words_of_the_query_is_an_answer(memory: Memory) -> None:
    memory.ingest([said("report", 1, event_type="worker.task.finding", payload={"claim": CAUSE})], now=NOW)
    assert events(recall(memory, CAUSE)) == ["report"]


def test_an_echo_is_recognised_by_its_stored_text(tmp_path: Path, embedder: Embedder) -> None:
    """The stored text is masked and truncated. Case, white space and polite phrases are ignored, as for duplicates."""
    secret = "https://ann:" + "hunter2" + "@db.example.com"
    long = "The backup log says: " + "disk full, " * 1_000
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.ingest([said("secret", 1, f"Why does {secret} fail?"), said("long", 1, long)], now=NOW)
        assert memory.stats().masked == {"url_password": 1}
        assert recall(memory, f"  please: why does {secret}\n fail?").excluded == {"echo": 1}
        assert recall(memory, long).excluded == {"echo": 1}


def test_the_calling_run_does_not_hide_an_older_memory_with_the_same_text(memory: Memory) -> None:
    memory.ingest([begun("former", 9_999, "r-0"), begun("own", 60, "r-1")], now=NOW)
    (same,) = recall(memory, by_run="r-1").memories
    assert (same.record.event_id, same.count, same.origins) == ("former", 1, ())


def test_own_words_lend_nothing_to_their_neighbours(told: Memory) -> None:
    told.ingest([said("reply", 1, "Noted.", session_id="s-1"), said("echo", 1, session_id="s-1")], now=NOW)
    assert all(found.explanation["contiguity"] == 0 for found in recall(told).memories)


def test_a_run_or_session_that_the_filter_selects_is_not_left_out(told: Memory) -> None:
    told.ingest([said("mine", 2, CAUSE, session_id="s-1"), begun("plan", 30, "r-1")], now=NOW)
    own_session = recall(told, filter=MemoryFilter(session_id="s-1"), by_session="s-1")
    assert (events(own_session), own_session.excluded) == (["mine"], {})
    assert events(recall(told, filter=MemoryFilter(run_id="r-1"), by_run="r-1")) == ["plan"]
    assert events(recall(told, filter=MemoryFilter(run_id="r-1"), by_run="r-2")) == ["plan"]


def test_only_memories_that_pass_the_filter_count_as_left_out(told: Memory) -> None:
    told.ingest([said("echo", 1)], now=NOW)
    other = MemoryFilter(exclude=Exclusion(events=("echo",)))
    assert recall(told, filter=other).excluded == {}
    assert recall(told, filter=other).total == recall(told).total == told.stats().memories - 1
    memory = recall(told, filter=MemoryFilter(sources=("user_input",))).memories[0]
    assert (memory.explanation["filter"], memory.explanation["matching"]) == ("exact", 1)
    unfiltered = recall(told).memories[0].explanation
    assert (unfiltered["filter"], unfiltered["filters"], unfiltered["matching"]) == ("none", {}, None)


def test_zero_echo_minutes_leave_out_only_what_the_caller_names(tmp_path: Path, embedder: Embedder) -> None:
    off = RecallSettings(echo_minutes=0)
    with Memory.open(tmp_path / "alice", embedder=embedder, recall_settings=off) as memory:
        memory.ingest([said("echo", 1, session_id="s-1"), begun("plan", 1, "r-1")], now=NOW)
        assert events(recall(memory, by_session="s-1")) == ["echo", "plan"]
        assert events(recall(memory, by_run="r-1")) == ["echo"]
        assert events(recall(memory, by_event="echo")) == ["plan"]


def test_own_words_are_relative_to_the_recall_and_not_to_the_reference_time(told: Memory) -> None:
    told.ingest([said("echo", 0)], now=NOW)
    assert events(recall(told, reference_time=NOW - WEEK)) == ["cause"]
    assert events(recall(told, now=NOW + WEEK, reference_time=NOW)) == ["cause", "echo"]
    assert events(recall(told, now=NOW - WEEK)) == ["cause", "echo"]


def test_the_block_and_the_log_of_recalls_leave_out_own_words(told: Memory) -> None:
    told.ingest([said("echo", 0, session_id="s-1")], now=NOW)
    result = recall(told, context_tokens=500, by_session="s-1")
    assert result.context is not None
    assert (ASKED in result.context, CAUSE in result.context) == (False, True)
    note = told._archive.store.recall_note(result.recall_id)
    assert note is not None
    echo = told._archive.store.row_of_event("echo")
    assert (note.session_id, echo in note.said_rows) == ("s-1", False)


def test_interleaved_and_learned_rankings_leave_out_own_words(tmp_path: Path, embedder: Embedder) -> None:
    learning = LearningSettings(mode="on")
    with Memory.open(tmp_path / "alice", embedder=embedder, learning_settings=learning) as memory:
        memory.ingest([said("cause", 99_999, CAUSE), said("used", 9_000)], now=NOW)
        used = memory.recall(ASKED, now=NOW - timedelta(minutes=5_000), deadline_ms=60_000)
        for number in range(12):
            now = NOW - timedelta(minutes=4_000 - number)
            used = memory.recall(f"{ASKED} Part {number}", now=now, deadline_ms=60_000)
            memory.feedback(used.recall_id, [used.memories[0].record.id], 1.0, now=now)
        memory.sona.consolidate()
        memory.ingest([said("echo", 0)], now=NOW)
        memory.feedback(used.recall_id, [recall(memory, now=NOW + WEEK).memories[0].record.id], 1.0, now=NOW)
        result = recall(memory)
        assert (events(result), result.excluded) == (["cause", "used"], {"echo": 1})


def test_a_message_that_arrives_during_recalls_is_never_in_an_answer(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.remember(CAUSE)
        answers: list[RecallResult] = []
        done = threading.Event()

        def ask() -> None:
            while not done.is_set() or len(answers) < 20:
                answers.append(memory.recall(ASKED, by_session="s-1", deadline_ms=60_000))

        asking = threading.Thread(target=ask)
        asking.start()
        for number in range(30):
            memory.ingest([message(0, ASKED, event_id=f"e-{number}", timestamp=datetime.now(NOW.tzinfo).isoformat(),
                                   session_id="s-1")])  # fmt: skip
        done.set()
        asking.join()
        assert {tuple(texts(result)) for result in answers} == {(CAUSE,)}
        assert memory.recall(ASKED, by_session="s-1").excluded == {"session": 30}


def test_an_approximate_index_still_answers_without_own_words(tmp_path: Path, embedder: Embedder) -> None:
    limited = StoreSettings(exact_search_limit=200)
    with Memory.open(tmp_path / "alice", embedder=embedder, store_settings=limited) as memory:
        memory.ingest([message(number, timestamp=ago(9_999)) for number in range(300)], now=NOW)
        memory.ingest([said(f"echo-{number}", 0) for number in range(40)], now=NOW)
        deadline_s = time.monotonic() + 60
        while memory.stats().index != "approximate":
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        result = memory.recall(ASKED, 20, mode="vector", now=NOW, deadline_ms=60_000)
        assert (len(result.memories), result.excluded) == (20, {"echo": 40})
        assert ASKED not in texts(result)


names = st.sampled_from([None, "a", "b"])
cases = st.lists(
    st.tuples(
        st.sampled_from([ASKED, CAUSE]),
        st.sampled_from([0, 5, 30]),
        names,
        names,
        st.sampled_from(["chat.user_msg", "conductor.run.started", "worker.task.finding"]),
    ),
    min_size=1,
    max_size=8,
)


@given(cases=cases, by_session=names, by_run=names, by_event=st.none() | st.integers(0, 8))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_exactly_the_own_words_by_the_rules_are_left_out(
    tmp_path_factory: pytest.TempPathFactory,
    cases: Sequence[tuple[str, int, str | None, str | None, str]],
    by_session: str | None,
    by_run: str | None,
    by_event: int | None,
) -> None:
    """Compares the result with the rules applied to each record separately."""
    kept, excluded = set(), {"event": 0, "run": 0, "session": 0, "echo": 0}
    with open_without_model(tmp_path_factory.mktemp("rules") / "alice") as memory:
        for number, (text, minutes, session, run, type_) in enumerate(cases):
            payload = {"text": text, "objective": text, "claim": text} | ({} if run is None else {"run_id": run})
            event = said(f"e-{number}", minutes, session_id=session, event_type=type_, payload=payload)
            assert memory.ingest([event], now=NOW).kept == 1
            recent, of_caller = minutes < 10, by_session is None or session in (None, by_session)
            if by_event == number:
                excluded["event"] += 1
            elif by_run is not None and run == by_run:
                excluded["run"] += 1
            elif recent and by_session is not None and session == by_session:
                excluded["session"] += 1
            elif recent and of_caller and text == ASKED and not type_.startswith("worker"):
                excluded["echo"] += 1
            else:
                kept.add(f"e-{number}")
        event_id = None if by_event is None else f"e-{by_event}"
        result = recall(memory, by_session=by_session, by_run=by_run, by_event=event_id)
        found = [found.record.id for found in result.memories]
        found += [origin.id for one in result.memories for origin in one.origins]
        found += [id_ for one in result.memories for id_ in (one.explanation["repeats"] or {"ids": []})["ids"]]
        assert {record.event_id for record in memory.get(found)} == kept
        assert result.excluded == {reason: count for reason, count in excluded.items() if count}
