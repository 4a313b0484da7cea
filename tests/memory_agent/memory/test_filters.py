"""Recalls with every field of `MemoryFilter`, at any selectivity, return the same memories as a brute-force search."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from memory_samples import NOW, START, SUBJECTS

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.records.memories import (
    KINDS,
    SOURCES,
    STATED_PROVENANCES,
    Exclusion,
    MemoryFilter,
    MemoryRecord,
    Mode,
)
from memory_agent.settings import RecallSettings

COUNT = 400
QUERY = "Rotate the payment keys"
MODES: tuple[Mode, ...] = get_args(Mode)
SESSIONS = [f"s-{number}" for number in range(6)]
TAGS = ["auth", "web", "data", "rare"]


def sample(number: int) -> dict[str, Any]:
    """Return an event with varied fields. A filter may select any number of the events, from none to all."""
    random = np.random.default_rng(number)
    event_type, quality = [
        ("chat.user_msg", {}),
        ("conductor.run.completed", {"quality": round(float(random.random()), 2)}),
        ("worker.task.finding", {}),
        ("writer.revision.created", {}),
        ("feedback.given", {"rating": int(random.integers(1, 6))}),
    ][int(random.choice(5, p=[0.5, 0.2, 0.2, 0.08, 0.02]))]
    fields: dict[str, Any] = {"text": f"{SUBJECTS[number % 8]}, part {number}", "tags": []} | quality
    fields["summary"] = fields["comment"] = fields["claim"] = fields["text"]
    fields["tags"] = [tag for tag, share in zip(TAGS, [0.5, 0.3, 0.1, 0.005], strict=True) if random.random() < share]
    if random.random() < 0.5:
        fields["provenance"] = str(random.choice(STATED_PROVENANCES)).upper()
    fields["phase"] = str(random.choice(["plan", "act"]))
    return {
        "event_id": f"e-{number}",
        "event_type": event_type,
        "timestamp": (START + timedelta(minutes=number)).isoformat(),
        "user_id": "alice",
        "session_id": SESSIONS[min(int(random.exponential(1.0)), 5)],
        "channel_id": str(random.choice(["c-0", "c-1", ""])) or None,
        "agent_id": str(random.choice(["a-0", "a-1"])),
        "actor_id": f"conductor:run_{random.integers(3)}",
        "payload": fields,
    }


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """A read-only memory with few candidates per ranking, so that filters must be applied before the cutoff."""
    recall = RecallSettings(candidates=20, min_relevance=0.0)
    with Memory.open(tmp_path_factory.mktemp("filters") / "a", embedder=embedder, recall_settings=recall) as memory:
        assert memory.ingest([sample(number) for number in range(COUNT)], now=NOW).kept == COUNT
        yield memory


@pytest.fixture(scope="module")
def everything(filled: Memory) -> list[MemoryRecord]:
    records = filled._archive.store.records(range(1, COUNT + 1), with_embedding=True)
    return [record for record in records if record is not None]


@pytest.fixture(scope="module")
def cosines(everything: list[MemoryRecord], embedder: Embedder) -> dict[str, float]:
    """The cosine of each record's vector with the vector of `QUERY`, by id."""
    vector = embedder.embed_query(QUERY)
    return {record.id: float(np.dot(record.embedding or [], vector)) for record in everything}


def passes(record: MemoryRecord, chosen: MemoryFilter) -> bool:
    """Reference implementation of a filter, ignoring `min_score`."""
    return all(
        (
            not chosen.kinds or record.kind in chosen.kinds,
            not chosen.sources or record.source in chosen.sources,
            chosen.since is None or record.timestamp >= chosen.since,
            chosen.until is None or record.timestamp < chosen.until,
            chosen.session_id is None or record.session_id == chosen.session_id,
            chosen.run_id is None or record.run_id == chosen.run_id,
            chosen.channel_id is None or record.channel_id == chosen.channel_id,
            chosen.in_channel is None or record.channel_id in (chosen.in_channel, None),
            chosen.agent_id is None or record.agent_id == chosen.agent_id,
            chosen.type is None or record.metadata["event_type"] == chosen.type,
            chosen.phase is None or record.metadata.get("phase") == chosen.phase,
            all(record.metadata.get(key) == value for key, value in chosen.metadata.items()),
            not chosen.tags or bool({*chosen.tags} & {*record.tags}),
            not chosen.provenance or not {record.provenance, record.stated_provenance}.isdisjoint(chosen.provenance),
            chosen.min_quality is None
            or (record.quality_score is not None and record.quality_score >= chosen.min_quality),
            chosen.exclude is None or not is_excluded(record, chosen.exclude),
        )
    )


def is_excluded(record: MemoryRecord, exclude: Exclusion) -> bool:
    return any(
        (
            record.event_id in exclude.events,
            record.id in exclude.records,
            record.session_id in exclude.sessions,
            record.run_id in exclude.runs,
            exclude.since is not None and record.timestamp >= exclude.since,
        )
    )


def some(values: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), max_size=2, unique=True).map(tuple)


moments = st.integers(-10, COUNT + 10).map(lambda minutes: START + timedelta(minutes=minutes))
filters = st.builds(
    MemoryFilter,
    kinds=some(KINDS),
    sources=some(SOURCES),
    since=st.none() | moments,
    until=st.none() | moments,
    session_id=st.none() | st.sampled_from([*SESSIONS, "s-none"]),
    run_id=st.none() | st.sampled_from(["run_0", "run_1"]),
    channel_id=st.none() | st.just("c-1"),
    in_channel=st.none() | st.sampled_from(["c-1", "c-none"]),
    agent_id=st.none() | st.just("a-0"),
    type=st.none() | st.sampled_from(["worker.task.finding", "feedback.given", "none.such"]),
    phase=st.none() | st.sampled_from(["plan", "no phase"]),
    metadata=st.sampled_from([{}, {}, {"phase": "act"}, {"rating": 3}, {"event_type": "chat.user_msg"}, {"no": "key"}]),
    tags=some(TAGS),
    provenance=some(STATED_PROVENANCES),
    min_quality=st.none() | st.floats(0, 1),
    min_score=st.none() | st.floats(-0.2, 0.7),
    exclude=st.none()
    | st.builds(
        Exclusion,
        events=some([f"e-{number}" for number in (0, 1, COUNT - 1, COUNT)]),
        sessions=some([*SESSIONS, "s-none"]),
        runs=some(["run_0", "run_1", "run_9"]),
        since=st.none() | moments,
    ),
)
ONE_FIELD_EACH = [
    {"kinds": ("finding",)},
    {"sources": ("trajectory_outcome",)},
    {"since": START + timedelta(minutes=3)},
    {"until": START + timedelta(minutes=3)},
    {"session_id": "s-5"},
    {"run_id": "run_1"},
    {"channel_id": "c-1"},
    {"in_channel": "c-1"},
    {"agent_id": "a-0"},
    {"type": "feedback.given"},
    {"phase": "act"},
    {"metadata": {"rating": 4}},
    {"metadata": {"phase": "plan", "event_type": "chat.user_msg"}},
    {"tags": ("rare",)},
    {"tags": ("rare", "auth")},
    {"provenance": ("cited", "assumed")},
    {"provenance": ("cached",)},
    {"provenance": ("cached:verified", "verified")},
    {"min_quality": 0.5},
    {"min_score": 0.5},
    {"min_score": -1.0},
    {"exclude": Exclusion(events=("e-0", "e-7", "e-unknown"))},
    {"exclude": Exclusion(sessions=("s-0", "s-1"), runs=("run_0",))},
    {"exclude": Exclusion(since=START + timedelta(minutes=3))},
    {"exclude": Exclusion()},
]


def check(
    filled: Memory, everything: list[MemoryRecord], cosines: dict[str, float], chosen: MemoryFilter, mode: Mode
) -> None:
    floor = -2.0 if chosen.min_score is None else chosen.min_score
    near = [r for r in everything if abs(cosines[r.id] - floor) < 1e-4]  # rounding decides for these
    right = {r.id for r in everything if passes(r, chosen) and cosines[r.id] >= floor}
    right |= {r.id for r in near if passes(r, chosen)}
    result = filled.recall(QUERY, top_k=1000, filter=chosen, mode=mode, deadline_ms=60_000)
    found = [memory.record.id for memory in result.memories]
    assert result.degraded == ()
    assert {*found} <= right
    doubtful = {record.id for record in near}
    if mode == "lexical":
        shares_word = {r.id for r in everything if any(word in r.text for word in ("Rotate", "payment", "keys"))}
        assert {*found} - doubtful == (right & shares_word) - doubtful
        return
    assert {*found} - doubtful == right - doubtful
    best = filled.recall(QUERY, top_k=3, filter=chosen, mode="vector", deadline_ms=60_000).memories
    nearest = sorted((cosines[id_] for id_ in right), reverse=True)[: len(best)]
    assert np.allclose([memory.score or 0.0 for memory in best], nearest, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fields", ONE_FIELD_EACH, ids=str)
def test_each_field_is_exact(
    filled: Memory, everything: list[MemoryRecord], cosines: dict[str, float], fields: dict[str, Any], mode: Mode
) -> None:
    check(filled, everything, cosines, MemoryFilter(**fields), mode)


@given(filters, st.sampled_from(MODES))
@example(MemoryFilter(), "hybrid")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fields_together_are_exact(
    filled: Memory, everything: list[MemoryRecord], cosines: dict[str, float], chosen: MemoryFilter, mode: Mode
) -> None:
    check(filled, everything, cosines, chosen, mode)


def test_each_excluded_record_is_omitted(filled: Memory, everything: list[MemoryRecord]) -> None:
    excluded = tuple(record.id for record in everything[:-10])
    found = filled.recall("keys", 1000, MemoryFilter(exclude=Exclusion(records=(*excluded, "unknown"))), "vector")
    assert {memory.record.id for memory in found.memories} == {record.id for record in everything[-10:]}
    assert found.memories[0].explanation["matching"] == 10


def test_a_filter_may_be_a_plain_mapping(filled: Memory) -> None:
    exclude = Exclusion(sessions=("s-0",), since=START + timedelta(minutes=500))
    chosen = MemoryFilter(kinds=("finding",), since=START, tags=("auth",), exclude=exclude)
    plain = {
        "kinds": ["finding"],
        "since": START.isoformat(),
        "tags": ["auth"],
        "exclude": msgspec.to_builtins(exclude),
    }
    assert [m.record.id for m in filled.recall("keys", filter=plain).memories] == [
        m.record.id for m in filled.recall("keys", filter=chosen).memories
    ]


def test_every_field_of_a_filter_is_tested() -> None:
    assert {field for fields in ONE_FIELD_EACH for field in fields} == set(msgspec.structs.asdict(MemoryFilter()))


def test_an_empty_name_matches_everything(filled: Memory) -> None:
    nowhere = Exclusion(events=("",), records=("",), sessions=("",), runs=("",))
    nothing_asked = MemoryFilter(session_id="", run_id="", channel_id="", in_channel="", agent_id="", exclude=nowhere)
    assert len(filled.recall("auth", top_k=5, filter=nothing_asked).memories) == 5


def test_each_result_reports_how_its_filter_was_applied(filled: Memory, everything: list[MemoryRecord]) -> None:
    chosen = MemoryFilter(tags=("rare",))
    right = sum(passes(record, chosen) for record in everything)
    result = filled.recall("keys", top_k=1, filter=chosen)
    assert (result.total, len(result.memories)) == (right, 1)
    for memory in result.memories:
        assert memory.explanation["filter"] == "exact"
        assert memory.explanation["matching"] == right
    everywhere = filled.recall("keys", top_k=1)
    assert everywhere.total == len(everything)
    unfiltered = everywhere.memories[0].explanation
    assert (unfiltered["filter"], unfiltered["matching"]) == ("none", None)
