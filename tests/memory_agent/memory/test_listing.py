"""Test that pages of memories and sessions match a plain sort of all records, even during additions and removals."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_samples import NOW, START

from memory_agent.erasure.request import passes
from memory_agent.errors import InvalidInputError
from memory_agent.memory import Memory, listing
from memory_agent.records.memories import ORDERS, Exclusion, MemoryFilter, MemoryRecord, Order, SessionSummary
from memory_agent.settings import EmbedderSettings, Settings

NO_MODEL = Settings(embedder=EmbedderSettings(folder="none", allow_download=False))
PHASES = ("plan", "act", "review")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """Sixty memories; many share a timestamp, and every seventh was replaced."""
    with Memory.open(tmp_path_factory.mktemp("listing") / "alice", settings=NO_MODEL) as memory:
        for number in range(60):
            remember(memory, number)
        for number in range(0, 60, 7):
            remember(memory, number, now=NOW + timedelta(minutes=number % 3))
        yield memory


def remember(memory: Memory, number: int, **fields: Any) -> MemoryRecord:
    given: dict[str, Any] = {
        "id": f"m-{number}",
        "phase": PHASES[number % 3],
        "timestamp": START + timedelta(hours=number * 7 % 5),
        "metadata": {"number": number, "of": {"three": number % 3 == 0}},
        "now": NOW,
    }
    return memory.remember(f"Memory {number}", **(given | fields))


def expected(memory: Memory, chosen: MemoryFilter, order: Order) -> list[str]:
    """The expected ids of all pages, computed from the records."""

    def key(pair: tuple[int, MemoryRecord]) -> tuple[datetime, int]:
        row, record = pair
        return (record.updated_at or record.timestamp if order == "updated" else record.timestamp, row)

    found = sorted(memory._archive.store.scan(), key=key, reverse=order != "oldest")
    return [record.id for _, record in found if passes(record, chosen)]


def pages(memory: Memory, chosen: MemoryFilter, order: Order, limit: int) -> Iterator[list[MemoryRecord]]:
    after = None
    for _ in range(100):
        page = memory.list(chosen, order, limit, after)
        assert 0 < len(page.records) <= limit or not page.total
        yield list(page.records)
        after = page.next_cursor
        if after is None:
            return
    raise AssertionError("the pages do not end")


filters = st.sampled_from(
    [
        MemoryFilter(),
        MemoryFilter(phase="act"),
        MemoryFilter(phase="no phase"),
        MemoryFilter(since=START + timedelta(hours=2)),
        MemoryFilter(metadata={"of.three": True}),
        MemoryFilter(metadata={"number": tuple(range(9)), "of.three": False}),
        MemoryFilter(metadata={"no.such.key": None}),
        MemoryFilter(type="none", metadata={"number": 1}),
        MemoryFilter(exclude=Exclusion(records=("m-3", "m-7", "unknown"))),
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=filters, order=st.sampled_from(ORDERS), limit=st.integers(1, 70))
def test_pages_are_the_sorted_records(filled: Memory, chosen: MemoryFilter, order: Order, limit: int) -> None:
    ids = expected(filled, chosen, order)
    assert filled.list(chosen, order, limit).total == len(ids)
    assert [record.id for page in pages(filled, chosen, order, limit) for record in page] == ids


@pytest.mark.parametrize("order", ORDERS)
def test_what_comes_and_goes_between_pages_neither_repeats_nor_hides(tmp_path: Path, order: Order) -> None:
    with Memory.open(tmp_path / "alice", settings=NO_MODEL) as memory:
        for number in range(40):
            remember(memory, number)
        before = expected(memory, MemoryFilter(), order)
        seen: list[str] = []
        for place, page in enumerate(pages(memory, MemoryFilter(), order, 5)):
            seen += [record.id for record in page]
            remember(memory, 100 + place, timestamp=START + timedelta(hours=place % 5))
            memory.forget([before[place * 5 + 6]] if place * 5 + 6 < len(before) else [])
            memory.care.compact()
        assert len(seen) == len(set(seen))
        stayed = {record.id for _, record in memory._archive.store.scan()}
        assert [one for one in before if one in stayed] == [one for one in seen if one in before and one in stayed]


def test_large_memories_make_short_pages(filled: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_BYTES", 1_000)
    found = list(pages(filled, MemoryFilter(), "newest", 50))
    assert all(1 <= len(page) < 10 for page in found)
    assert [record.id for page in found for record in page] == expected(filled, MemoryFilter(), "newest")
    monkeypatch.setattr(listing, "_MOST_BYTES", 1)
    assert len(list(pages(filled, MemoryFilter(phase="act"), "newest", 50))) == 20


def test_a_page_reads_no_more_than_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_BYTES", 1 << 20)
    with Memory.open(tmp_path / "alice", settings=NO_MODEL) as memory:
        for number in range(100):
            memory.remember(f"Step {number}", metadata={"log": "x" * 500_000})
        tracemalloc.start()
        try:
            page = memory.list(limit=100)
            most_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (len(page.records), page.total) == (2, 100)
    assert most_bytes < 10 << 20


def test_a_memory_that_is_forgotten_while_a_page_is_read_is_left_out(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "alice", settings=NO_MODEL) as memory:
        for number in range(6):
            remember(memory, number)
        *_, (row, last) = memory._archive.store.scan()
        with memory._archive.store.batch() as batch:  # the columns have not applied this yet
            batch.delete(row)
        found = [record.id for page in pages(memory, MemoryFilter(), "newest", 4) for record in page]
        assert sorted(found) == sorted({f"m-{number}" for number in range(6)} - {last.id})


def test_an_empty_memory_has_one_empty_page(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "alice", settings=NO_MODEL) as memory:
        for order in ORDERS:
            page = memory.list(order=order)
            assert (page.records, page.total, page.next_cursor) == ((), 0, None)


def _cursor(*place: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).decode()


@pytest.mark.parametrize(
    "after",
    [
        "",
        "x",
        "é",
        "\ud800",
        "a" * 100_000,
        7,
        _cursor("newest", 1),
        _cursor("newest", 1, 2, 3),
        _cursor("newest", 2**63, 1),
        _cursor("best", 1, 1),
        _cursor("oldest", 1, 1),
        base64.urlsafe_b64encode(b"\x91" * 5_000).decode(),
    ],
    ids=str,
)
def test_what_is_no_cursor_is_refused(filled: Memory, after: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        filled.list(after=after)
    assert caught.value.field == "after"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1_001}, "limit"),
        ({"limit": True}, "limit"),
        ({"order": "best"}, "order"),
        ({"order": ["newest"]}, "order"),
        ({"filter": {"min_score": 0.1}}, "filter.min_score"),
        ({"filter": {"colour": "red"}}, "filter.colour"),
        ({"filter": {"phase": 7}}, "filter.phase"),
        ({"filter": {"type": "\ud800"}}, "filter.type"),
        ({"filter": {"metadata": {"a": ()}}}, "filter.metadata.a"),
        ({"filter": {"metadata": {"a": {"b": 1}}}}, "filter.metadata[...]"),
        ({"filter": {"metadata": "a"}}, "filter.metadata"),
        ({"filter": 7}, "filter"),
    ],
)
def test_bad_arguments_are_refused_by_name(filled: Memory, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        filled.list(**arguments)
    assert caught.value.field == field


def test_what_is_replaced_between_two_pages_is_shown_once_unless_its_place_changes(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "alice", settings=NO_MODEL) as memory:
        for number in range(6):
            memory.remember(f"Memory {number}", id=f"m-{number}", timestamp=START + timedelta(hours=number), now=NOW)
        shown = ["m-5", "m-4", "m-3"]
        first = memory.list(limit=3)
        assert [record.id for record in first.records] == shown
        for name in ("m-1", "m-4"):
            memory.remember("Replaced", id=name, now=NOW + timedelta(minutes=1))
        rest = memory.list(after=first.next_cursor)
        assert [(record.id, record.text) for record in rest.records] == [
            ("m-2", "Memory 2"),
            ("m-1", "Replaced"),
            ("m-0", "Memory 0"),
        ]
        memory.remember("Retimed", id="m-0", timestamp=START + timedelta(hours=9), now=NOW + timedelta(minutes=2))
        assert [record.id for record in memory.list(after=first.next_cursor).records] == ["m-2", "m-1"]
        assert [record.id for record in memory.list(order="updated", limit=3).records] == ["m-0", "m-4", "m-1"]


def remember_in_sessions(memory: Memory, count: int) -> None:
    """Store memories with and without a session, a channel or a run, in six sessions and five channels."""
    for number in range(count):
        remember(
            memory,
            number,
            kind="episode" if number % 2 else "finding",
            source="user_input" if number % 5 == 3 else "worker_result",
            session_id=None if number % 7 == 6 else f"s-{number % 7}",
            channel_id=None if number % 3 else f"c-{number % 5}",
            run_id=None if number % 4 else f"r-{number % 8}",
        )


def expected_sessions(memory: Memory, chosen: MemoryFilter) -> list[SessionSummary]:
    """The expected sessions of all pages, computed from the records."""
    ordered = sorted(memory._archive.store.scan(), key=lambda pair: (pair[1].timestamp, pair[0]))
    found: list[tuple[tuple[datetime, int], SessionSummary]] = []
    for session in {record.session_id for _, record in ordered} - {None}:
        everything = [record for _, record in ordered if record.session_id == session]
        inside = [(row, record) for row, record in ordered if record.session_id == session and passes(record, chosen)]
        if not inside:
            continue
        records = [record for _, record in inside]
        requests = [record for record in everything if record.source == "user_input"] or everything
        kinds = [record.kind for record in records]
        summary = SessionSummary(
            session_id=str(session),
            first=records[0].timestamp,
            last=records[-1].timestamp,
            memories=len(records),
            runs=len({record.run_id for record in records} - {None}),
            kinds={kind: kinds.count(kind) for kind in kinds},
            channel_id=next((one.channel_id for one in reversed(records) if one.channel_id is not None), None),
            title=requests[0].text,
        )
        found.append(((records[-1].timestamp, inside[-1][0]), summary))
    return [summary for _, summary in sorted(found, key=lambda pair: pair[0], reverse=True)]


def session_pages(memory: Memory, chosen: MemoryFilter, limit: int) -> Iterator[tuple[SessionSummary, ...]]:
    after = None
    for _ in range(100):
        page = memory.sessions(chosen, limit, after)
        yield page.sessions
        after = page.next_cursor
        if after is None:
            return
    raise AssertionError("the pages do not end")


@pytest.fixture(scope="module")
def with_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    with Memory.open(tmp_path_factory.mktemp("sessions") / "alice", settings=NO_MODEL) as memory:
        remember_in_sessions(memory, 60)
        memory.forget([f"m-{number}" for number in range(0, 60, 9)])
        yield memory


@pytest.mark.parametrize("limit", [1, 2, 3, 1_000])
@pytest.mark.parametrize(
    "chosen",
    [
        MemoryFilter(),
        MemoryFilter(in_channel="c-3"),
        MemoryFilter(channel_id="c-3"),
        MemoryFilter(kinds=("episode",), phase="act"),
        MemoryFilter(session_id="s-2"),
        MemoryFilter(session_id="unknown"),
    ],
)
def test_pages_of_sessions_are_the_grouped_records(with_sessions: Memory, chosen: MemoryFilter, limit: int) -> None:
    expected = expected_sessions(with_sessions, chosen)
    found = list(session_pages(with_sessions, chosen, limit))
    assert [one for page in found for one in page] == expected
    assert with_sessions.sessions(chosen, limit).total == len(expected)
    assert all(len(page) == limit for page in found[:-1])


def test_the_title_of_a_session_is_one_line_of_bounded_length(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "alice", settings=NO_MODEL) as memory:
        memory.remember("Fix\n\n  the\trace", session_id="short")
        memory.remember("word " * 3_000, session_id="long")
        titles = {one.session_id: one.title for one in memory.sessions().sessions}
    assert titles["short"] == "Fix the race"
    assert len(titles["long"]) == 200
    assert titles["long"].endswith("word…")


def test_a_session_that_is_forgotten_while_a_page_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory.open(tmp_path / "alice", settings=NO_MODEL) as memory:
        remember_in_sessions(memory, 12)
        view = memory._archive.settled_view()
        memory.forget_session("s-2")
        monkeypatch.setattr(memory._archive, "settled_view", lambda: view)
        assert {one.session_id for one in memory.sessions().sessions} == {"s-0", "s-1", "s-3", "s-4", "s-5"}
