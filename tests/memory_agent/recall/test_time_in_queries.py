"""A date in the query boosts memories of that date, filters memories on request, and is reported in the answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_samples import message

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError
from memory_agent.memory import Memory
from memory_agent.recall.candidates import nearness
from memory_agent.recall.dates import ask_for_nothing_else
from memory_agent.records.memories import RecallResult, UnderstoodDate, microseconds
from memory_agent.settings import RecallSettings
from memory_agent.storage.terms import query_words

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)  # a Monday
DAY = timedelta(days=1)


def at(moment: datetime) -> int:
    return microseconds(moment, "moment")


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """The memory of a user who made the same statement every third day for half a year. Read-only."""
    with Memory.open(tmp_path_factory.mktemp("diary") / "u", embedder=embedder) as memory:
        events = [
            message(
                days,
                f"Standup number {days}: fixed a flaky test",
                timestamp=(NOW - days * DAY).isoformat(),
                session_id=f"day-{days}",
            )
            for days in range(0, 180, 3)
        ]
        memory.ingest(events, now=NOW)
        yield memory


def days_ago(result_time: datetime) -> int:
    return (NOW - result_time).days


@pytest.mark.parametrize(
    ("phrase", "first", "last"),
    [("last week", 1, 8), ("three days ago", 3, 3), ("in January 2026", 16, 47), ("since Friday", 0, 3)],
)
def test_memories_of_the_time_come_first(diary: Memory, phrase: str, first: int, last: int) -> None:
    result = diary.recall(f"which flaky test did we fix {phrase}?", top_k=1, reference_time=NOW)
    assert first <= days_ago(result.memories[0].record.timestamp) <= last
    assert [date.phrase for date in result.dates] == [phrase]
    explanation = result.memories[0].explanation
    assert explanation["date_boost"] == pytest.approx(0.3)
    assert explanation["dates"][0]["phrase"] == phrase


def test_on_request_the_time_is_a_filter(diary: Memory) -> None:
    result = diary.recall("flaky test last week", top_k=50, dates="filter", reference_time=NOW)
    monday = datetime(2026, 2, 9, tzinfo=UTC)
    expected = {days for days in range(0, 180, 3) if monday <= NOW - days * DAY < monday + 7 * DAY}
    assert {days_ago(found.record.timestamp) for found in result.memories} == expected
    assert result.memories[0].explanation["filter"] == "exact"


def test_several_dates_filter_by_any_of_them(diary: Memory) -> None:
    result = diary.recall("flaky test 3 days ago or 30 days ago", top_k=50, dates="filter", reference_time=NOW)
    assert {days_ago(found.record.timestamp) for found in result.memories} == {3, 30}


def test_the_callers_filter_and_the_dates_of_the_query_both_apply(diary: Memory) -> None:
    result = diary.recall("flaky test last week", 50, {"session_id": "day-6"}, dates="filter", reference_time=NOW)
    assert [days_ago(found.record.timestamp) for found in result.memories] == [6]
    none = diary.recall("flaky test last week", 50, {"session_id": "day-60"}, dates="filter", reference_time=NOW)
    assert none.memories == ()


def test_times_can_be_ignored(diary: Memory) -> None:
    result = diary.recall("flaky test last week", top_k=3, dates="ignore", reference_time=NOW)
    assert result.dates == ()
    assert all(found.explanation["date_boost"] == 0.0 for found in result.memories)


def test_last_week_is_relative_to_the_reference_time(diary: Memory) -> None:
    earlier = NOW - 90 * DAY
    result = diary.recall("flaky test last week", top_k=1, reference_time=earlier)
    assert 91 <= days_ago(result.memories[0].record.timestamp) <= 98


def test_a_reference_time_without_zone_is_refused(diary: Memory) -> None:
    with pytest.raises(InvalidInputError) as caught:
        diary.recall("last week", reference_time=datetime(2026, 2, 16))  # noqa: DTZ001
    assert caught.value.field == "reference_time"


def test_an_unknown_use_of_dates_is_refused(diary: Memory) -> None:
    with pytest.raises(InvalidInputError) as caught:
        diary.recall("last week", dates="perhaps")  # type: ignore[arg-type]
    assert caught.value.field == "dates"


def test_a_date_weight_of_zero_changes_nothing(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "u", embedder=embedder, recall_settings=RecallSettings(date_weight=0.0)) as memory:
        memory.ingest([message(1, timestamp=(NOW - 3 * DAY).isoformat())], now=NOW)
        result = memory.recall("race in the auth module three days ago", reference_time=NOW, min_relevance=0)
    assert result.memories[0].explanation["date_boost"] == 0.0


def test_a_memory_gains_within_the_time_less_after_it_and_nothing_before() -> None:
    date = UnderstoodDate(phrase="that day", since=NOW, until=NOW + DAY)
    moments = [NOW - DAY, NOW, NOW + DAY - timedelta(microseconds=1), NOW + 2 * DAY, NOW + 60 * DAY]
    gains = nearness(np.array([at(moment) for moment in moments]), [date])
    assert gains[:3].tolist() == [0.0, 1.0, 1.0]
    assert gains[3] == pytest.approx(np.exp(-1))
    assert gains[4] < 1e-9


@given(
    st.lists(st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=20),
    st.none() | st.integers(0, 40_000),
    st.none() | st.integers(0, 40_000),
)
def test_nearness_is_from_0_to_1_and_1_within_the_time(times: list[int], since: int | None, length: int | None) -> None:
    start = None if since is None else datetime(1970, 1, 1, tzinfo=UTC) + since * DAY
    base = start or datetime(1990, 1, 1, tzinfo=UTC)
    end = None if length is None else base + (length + 1) * DAY
    gains = nearness(np.array(times), [UnderstoodDate(phrase="x", since=start, until=end)])
    assert ((gains >= 0) & (gains <= 1)).all()
    low = -np.inf if start is None else at(start)
    high = np.inf if end is None else at(end)
    inside = np.array([low <= time < high for time in times])
    assert (gains[inside] == 1.0).all()


YESTERDAY = ("Ann glazed twelve bowls in celadon", "The invoice of the printer is paid", "Per lost his bicycle key")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """A memory with three different texts from yesterday, and one text from each other day. Read-only."""
    said = [
        *((f"Walnut number {days} fell from the tree", NOW - days * DAY) for days in (0, *range(2, 40))),
        *((text, NOW - DAY) for text in YESTERDAY),
    ]
    with Memory.open(tmp_path_factory.mktemp("mixed") / "u", embedder=embedder) as memory:
        memory.ingest(
            [message(number, text, timestamp=time.isoformat()) for number, (text, time) in enumerate(said)], now=NOW
        )
        yield memory


@pytest.mark.parametrize(
    "query",
    [
        "what did we do yesterday?",
        "yesterday",
        "What happened yesterday?",
        "recap yesterday's conversation",
        "what have we been talking about yesterday",
        "Summarize what was discussed on 15 February 2026, please",
        "what went on yesterday",
        "let's look at what I worked on yesterday",
        "do you remember anything from yesterday?",
        "what's new since yesterday?",
    ],
)
def test_a_question_for_a_time_alone_lists_that_time(mixed: Memory, query: str) -> None:
    result = mixed.recall(query, 10, reference_time=NOW)
    of_then = [one for one in result.memories if one.record.text in YESTERDAY]
    assert sorted(one.record.text for one in of_then) == sorted(YESTERDAY)
    assert [one.relevance for one in of_then] == [1.0] * 3
    assert all(since <= one.record.timestamp < until for one in result.memories for since, until in spans(result))


def spans(result: RecallResult) -> list[tuple[datetime, datetime]]:
    latest = datetime.max.replace(tzinfo=UTC)
    return [(date.since or NOW - 999 * DAY, date.until or latest) for date in result.dates]


@pytest.mark.parametrize(
    "query",
    [
        "which submarine did we sink yesterday?",
        "what did we decide about Mongolian export tariffs yesterday?",
        "what happened to the volcano last week?",
    ],
)
def test_a_question_for_something_of_a_time_is_judged_by_that(mixed: Memory, query: str) -> None:
    result = mixed.recall(query, 10, reference_time=NOW)
    assert result.dates
    assert result.memories == ()


def test_a_time_that_is_ignored_answers_nothing(mixed: Memory) -> None:
    assert mixed.recall("what did we do yesterday?", 10, reference_time=NOW, dates="ignore").memories == ()


@pytest.mark.parametrize(
    ("query", "phrases", "is_all"),
    [
        ("what did we do yesterday?", ["yesterday"], True),
        ("what happened on Monday and on Friday", ["on Monday", "on Friday"], True),
        ("what did we do?", [], False),
        ("what did Ann do yesterday?", ["yesterday"], False),
        ("who decided yesterday", ["yesterday"], False),
    ],
)
def test_words_that_ask_for_anything_ask_only_for_the_time(query: str, phrases: list[str], is_all: bool) -> None:
    assert ask_for_nothing_else(phrases, query_words(query)) is is_all
