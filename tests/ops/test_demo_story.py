"""Test that the demo's story consists of valid events, and that it supports the scenes of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from memory_agent import Memory, MemoryFilter
from memory_agent.errors import ModelMissingError
from memory_agent.storage.owners import ownership_keys
from ops.demo.story import CONDUCTOR, Event, PlannerRequest, Story, Week, workers_of
from relay import SYSTEM_USER, EventLimits, MalformedEventError, decode_event, encode_event, event_from_mapping

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
WEEKS: tuple[Week, ...] = (1, 2, 3)
STORY = Story.load()


def told(weeks: tuple[Week, ...] = WEEKS) -> list[Event]:
    events = [event for sent in STORY.events(weeks, NOW).values() for event in sent]
    return sorted(events, key=lambda event: event["timestamp"])


def belonging_to(user: str, weeks: tuple[Week, ...]) -> list[Event]:
    return [event for event in told(weeks) if STORY.owner_of(event["payload"]["run_id"]) == user]


def test_every_event_passes_the_checks_of_the_relay() -> None:
    for event in told() + STORY.plain_events(NOW):
        assert event_from_mapping(event, EventLimits(), NOW).event_id == event["event_id"]


def test_event_ids_are_unique_and_reproducible() -> None:
    ids = [event["event_id"] for event in told() + STORY.plain_events(NOW)]
    assert len(set(ids)) == len(ids)
    assert ids == [event["event_id"] for event in told() + STORY.plain_events(NOW)]


def test_the_torn_message_is_not_an_event() -> None:
    with pytest.raises(MalformedEventError):
        decode_event(STORY.plain_pub.torn.encode(), EventLimits(), NOW)


@pytest.mark.parametrize("week", WEEKS)
def test_each_week_lies_in_the_past_and_has_work_for_every_process(week: Week) -> None:
    sent = STORY.events((week,), NOW)
    assert set(sent) == {CONDUCTOR, *map(workers_of, STORY.users)}
    assert all(sent.values())
    newest = max(datetime.fromisoformat(event["timestamp"]) for events in sent.values() for event in events)
    assert newest < NOW


def test_each_user_has_runs_that_were_approved_and_runs_that_failed() -> None:
    for user in STORY.users:
        endings = [(kind, payload) for run in STORY.run if run.user == user for kind, payload in run.events]
        assert any(kind == "conductor.run.failed" for kind, _ in endings)
        assert any(payload.get("approved") for _, payload in endings)


def test_system_events_belong_to_runs_that_their_owner_mentions() -> None:
    owners: dict[str, set[str]] = {}
    system: list[tuple[str, ...]] = []
    for event in told():
        keys = ownership_keys(encode_event(event_from_mapping(event, EventLimits(), NOW)))
        if event["user_id"] == SYSTEM_USER:
            system.append(keys)
        else:
            for key in keys:
                owners.setdefault(key, set()).add(event["user_id"])
    assert len(system) > 30
    for keys in system:
        claimed = [owners[key] for key in keys if key in owners]
        assert claimed
        assert all(len(users) == 1 for users in claimed)


@pytest.fixture(scope="module")
def memories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, Week], Memory]]:
    """Return each user's memory after two weeks and after three."""
    opened: dict[tuple[str, Week], Memory] = {}
    for user in STORY.users:
        for last, weeks in ((2, WEEKS[:2]), (3, WEEKS)):
            memory = opened[user, last] = Memory.open(tmp_path_factory.mktemp(f"{user}-{last}"), user_id=user)
            memory.ingest(belonging_to(user, weeks), now=NOW)
    yield opened
    for memory in opened.values():
        memory.close()


@pytest.mark.parametrize("request_", STORY.request, ids=lambda request: request.expects)
def test_each_request_finds_the_run_that_helps(
    request_: PlannerRequest, memories: dict[tuple[str, Week], Memory]
) -> None:
    memory = memories[request_.user, request_.after_week]
    if memory.stats().model is None:
        pytest.skip(f"no embedding model on this machine: {ModelMissingError.code}")
    result = memory.recall(request_.text, request_.top_k, MemoryFilter(kinds=tuple(request_.kinds)), now=NOW)
    assert request_.expects in [found.record.run_id for found in result.memories[:3]]


@pytest.mark.parametrize("request_", STORY.request, ids=lambda request: request.expects)
def test_no_request_repeats_a_stored_text(request_: PlannerRequest) -> None:
    stored = [value for event in told() for value in event["payload"].values() if isinstance(value, str)]
    assert not any(request_.text in text or text in request_.text for text in stored if len(text) > 20)


def test_its_noise_is_dropped_for_six_different_reasons(memories: dict[tuple[str, Week], Memory]) -> None:
    for user in STORY.users:
        assert set(memories[user, 3].stats().events_dropped) == {
            "heartbeat", "token_count", "repeated_progress", "too_short", "no_text", "not_high_signal",
        }  # fmt: skip
