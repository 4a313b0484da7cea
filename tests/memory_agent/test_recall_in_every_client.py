"""A recall returns the same answers and errors in an embedded memory as through the daemon's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from served_host import absent_embedder, client_of_host

from memory_agent import Memory, MemoryClient, MemoryProvider
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import InvalidInputError
from memory_agent.recall.dates import describe
from memory_agent.recall.query import MOST_VALUES
from memory_agent.records.memories import Exclusion, MemoryFilter

TOKYO = timezone(timedelta(hours=9))
NEW_YORK = ZoneInfo("America/New_York")
TEXT = "the auth race needed a mutex"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEmbedder]:
    """A client whose embedder is not running, so that recalls search by words only."""
    with absent_embedder(tmp_path_factory.mktemp("embedder")) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory, embedder: RemoteEmbedder) -> Iterator[Memory]:
    with Memory.open(tmp_path_factory.mktemp("embedded") / "alice", embedder=embedder) as memory:
        memory.remember(TEXT, tags=["auth"])
        yield memory


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, embedder: RemoteEmbedder) -> Iterator[MemoryClient]:
    with client_of_host(tmp_path_factory.mktemp("host"), embedder) as client:
        client.remember(TEXT, tags=["auth"])
        yield client


@pytest.fixture(params=["embedded", "client"])
def memory(request: pytest.FixtureRequest) -> MemoryProvider:
    provider: MemoryProvider = request.getfixturevalue(request.param)
    return provider


@pytest.mark.parametrize(
    ("moment", "query", "since", "until"),
    [
        (datetime(2026, 2, 10, 3, tzinfo=TOKYO), "yesterday", "2026-02-08T15", "2026-02-09T15"),
        (datetime(2026, 2, 10, 3, tzinfo=ZoneInfo("Asia/Tokyo")), "yesterday", "2026-02-08T15", "2026-02-09T15"),
        (datetime(2023, 11, 6, 12, tzinfo=NEW_YORK), "yesterday", "2023-11-05T04", "2023-11-06T05"),
        (datetime(2023, 11, 6, 12, tzinfo=NEW_YORK), "in July 2023", "2023-07-01T04", "2023-08-01T04"),
        (datetime(2026, 2, 9, 18, tzinfo=UTC), "yesterday", "2026-02-08T00", "2026-02-09T00"),
    ],
)
def test_days_begin_where_the_reference_time_is(
    memory: MemoryProvider, moment: datetime, query: str, since: str, until: str
) -> None:
    """Times on the wire are in UTC. The third day has 25 hours, and July's UTC offset differs from November's."""
    (date,) = memory.recall(f"the auth race {query}", reference_time=moment, mode="lexical").dates
    expected = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (since, until)]
    assert [date.since, date.until] == expected, describe(date)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"foo": 1}, "foo"),
        ({"kinds": ["finding"]}, "kinds"),
        ({"kinds": None}, "kinds"),
        ({"mode": ""}, "mode"),
        ({"mode": 0}, "mode"),
        ({"mode": []}, "mode"),
        ({"by_session": ""}, "by_session"),
        ({"by_session": "s" * 257}, "by_session"),
        ({"by_event": 1}, "by_event"),
        ({"by_event": "\ud800"}, "by_event"),
        ({"filter": {"exclude": {"sessions": "s"}}}, "filter.exclude.sessions"),
        ({"filter": {"exclude": Exclusion(since=datetime(2026, 2, 10))}}, "filter.exclude.since"),  # noqa: DTZ001
        ({"dates": 0}, "dates"),
        ({"dates": ""}, "dates"),
        ({"profile": ""}, "profile"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_k": 5.0}, "top_k"),
        ({"with_embedding": "no"}, "with_embedding"),
        ({"with_embedding": 0}, "with_embedding"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"context_tokens": 1e3}, "context_tokens"),
        ({"reference_time": "2026-02-10T03:00:00Z"}, "reference_time"),
        ({"reference_time": 0}, "reference_time"),
        ({"reference_time": datetime(2026, 2, 10)}, "reference_time"),  # noqa: DTZ001
        ({"reference_time": datetime(1960, 2, 10, tzinfo=UTC)}, "reference_time"),
        ({"deadline_ms": float("inf")}, "deadline_ms"),
        ({"deadline_ms": float("nan")}, "deadline_ms"),
        ({"deadline_ms": True}, "deadline_ms"),
        ({"deadline_ms": "soon"}, "deadline_ms"),
        ({"filter": {"tags": [str(number) for number in range(MOST_VALUES + 1)]}}, "filter.tags"),
        ({"filter": MemoryFilter(tags=tuple(map(str, range(300_000))))}, "filter.tags"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_unusable_argument_is_named(memory: MemoryProvider, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.recall("the auth race", **arguments)
    assert caught.value.field == field


def test_a_misplaced_filter_field_gets_a_hint(memory: MemoryProvider) -> None:
    with pytest.raises(InvalidInputError, match="field of the filter"):
        memory.recall("the auth race", session_id="s")  # type: ignore[call-arg]


def test_none_is_the_default_everywhere(memory: MemoryProvider) -> None:
    found = memory.recall(
        "the auth race",
        by_run=None,
        by_session=None,
        by_event=None,
        top_k=None,
        filter=None,
        mode=None,
        deadline_ms=None,
        profile=None,
        dates=None,
        reference_time=None,
        context_tokens=None,
        with_embedding=None,
    )
    assert [memory.record.text for memory in found.memories] == [TEXT]
    assert found.context is None


@pytest.mark.parametrize("deadline_ms", [1e9, 1e12, 1e15, 1e300, 10**400])
def test_a_very_long_deadline_is_accepted(memory: MemoryProvider, deadline_ms: float) -> None:
    found = memory.recall("the auth race", deadline_ms=deadline_ms, mode="lexical")
    assert ([memory.record.text for memory in found.memories], found.degraded) == ([TEXT], ())


@pytest.mark.parametrize("deadline_ms", [0, -1, -1e300, -(10**400)])
def test_a_deadline_of_zero_gives_an_empty_answer(memory: MemoryProvider, deadline_ms: float) -> None:
    found = memory.recall("the auth race", deadline_ms=deadline_ms, mode="lexical")
    assert (found.memories, found.degraded) == ((), ("deadline",))


@pytest.mark.parametrize(
    "filter",
    [
        MemoryFilter(kinds=("finding",) * 300_000),
        MemoryFilter(tags=("auth",) * 300_000, sources=("user_input",) * 300_000),
        MemoryFilter(tags=("auth", *map(str, range(MOST_VALUES - 1)))),
    ],
    ids=["kinds", "tags", "most tags"],
)
def test_a_long_filter_filters_and_leaves_the_indexes_alone(memory: MemoryProvider, filter: MemoryFilter) -> None:
    """SQLite uses the same error for too many parameters and for damage."""
    found = memory.recall("the auth race", filter=filter, mode="lexical")
    assert ([memory.record.text for memory in found.memories], found.degraded) == ([TEXT], ())


def test_own_words_are_left_out_and_excluded_ones_too(memory: MemoryProvider) -> None:
    request = f"Find out whether {TEXT}"
    memory.runs.begin(request, "run-1", session_id="s-1", event_id="begin-1")
    asked: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({}, {"echo": 1}),
        ({"by_event": "begin-1"}, {"event": 1}),
        ({"by_run": "run-1"}, {"run": 1}),
        ({"by_session": "s-1"}, {"session": 1}),
        ({"filter": {"exclude": {"sessions": ["s-1"]}}}, {}),
        ({"filter": MemoryFilter(exclude=Exclusion(events=("begin-1",)))}, {}),
    ]
    for options, excluded in asked:
        found = memory.recall(request, **options)
        assert ([one.record.text for one in found.memories], found.excluded) == ([TEXT], excluded), options
    elsewhere = memory.recall(request, by_session="s-2")
    assert ({one.record.text for one in elsewhere.memories}, elsewhere.excluded) == ({TEXT, request}, {})
    assert memory.forget_session("s-1") == 1
