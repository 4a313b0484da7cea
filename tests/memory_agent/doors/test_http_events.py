"""Test that events over HTTP are admitted, masked and journaled like a publisher's events, each with a receipt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_caller import HttpCaller
from served_gateway import Served, gateway_in_new_folder

from memory_agent import MemoryClient
from memory_agent.doors.http.publishing import MOST_EVENTS
from memory_agent.signals import is_own
from relay import Event, Publisher, Scope, Subscriber, create_key, journal_folder, read_event

SECRET = "sk-ant-api03-" + "Zk9" * 31
TOLD = {"event_type": "user_input", "payload": {"text": "Staging needs the VPN"}}


@pytest.fixture
def served() -> Iterator[Served]:
    with gateway_in_new_folder() as served:
        yield served


def of_key(served: Served, user_id: str | None, *scopes: Scope) -> HttpCaller:
    return HttpCaller(served.http, create_key(served.data_dir, "some", user_id, frozenset(scopes)).token)


def journaled(served: Served) -> list[Event]:
    """Return the events in the journal, except the blocks that the daemon publishes in response."""
    with Subscriber(*served.relay) as subscriber:
        entries = subscriber.fetch(0, 2_000).entries
        return [read_event(entry.data) for entry in entries if not is_own(entry.event_type)]


def publish(caller: HttpCaller, *events: Any, **fields: Any) -> dict[str, Any]:
    answer = caller.post("events", {"events": list(events), **fields})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def test_an_acknowledged_event_is_in_the_journal_and_becomes_a_memory(served: Served, caller: HttpCaller) -> None:
    told = publish(caller, {**TOLD, "event_id": "e-1", "session_id": "s-1"}, user_id="alice")
    assert told == {
        "accepted": 1,
        "duplicates": 0,
        "refused": 0,
        "receipts": [{"event_id": "e-1", "seq": 1}],
    }
    (event,) = journaled(served)
    assert (event.event_id, event.user_id, event.session_id) == ("e-1", "alice", "s-1")
    with MemoryClient("alice", endpoint=served.gateway, token=served.token) as client:
        client.wait({"alice": 1}, 30)
        assert client.list().records[0].text == "Staging needs the VPN"


def test_a_repeat_is_a_duplicate_with_and_without_an_id(served: Served, caller: HttpCaller) -> None:
    first = publish(caller, {**TOLD, "event_id": "e-1"}, TOLD)
    again = publish(caller, {**TOLD, "event_id": "e-1"}, TOLD)
    assert (first["accepted"], again["accepted"], again["duplicates"]) == (2, 0, 2)
    assert [one["event_id"] for one in again["receipts"]] == [one["event_id"] for one in first["receipts"]]
    assert len(journaled(served)) == 2


def test_a_publisher_and_the_door_derive_the_same_id(served: Served, caller: HttpCaller) -> None:
    with Publisher(served.relay.ingest) as publisher:
        event_id = publisher.publish({**TOLD, "user_id": "alice"})
        publisher.flush()
    assert publish(caller, TOLD, user_id="alice")["receipts"] == [{"event_id": event_id, "seq": 1, "duplicate": True}]


def test_events_are_stored_in_order_and_a_bad_one_alone_is_refused(served: Served, caller: HttpCaller) -> None:
    told = publish(
        caller,
        {**TOLD, "event_id": "e-1"},
        {"event_id": "e-2"},
        {**TOLD, "event_id": "e-3", "user_id": "no/folder"},
        {**TOLD, "event_id": "e-4", "payload": {"text": "x" * 300_000}},
        {**TOLD, "event_id": "e-5"},
    )
    assert [one.get("seq") for one in told["receipts"]] == [1, None, None, None, 2]
    refusals = [(one["code"], one["field"]) for one in told["receipts"] if "code" in one]
    assert refusals == [("malformed_event", "event_type"), ("malformed_event", "user_id"), ("event_too_large", "event")]
    assert [event.event_id for event in journaled(served)] == ["e-1", "e-5"]


def test_secrets_are_masked_before_anything_is_stored(served: Served, caller: HttpCaller) -> None:
    publish(caller, {**TOLD, "payload": {"text": f"the key is {SECRET}"}})
    (event,) = journaled(served)
    assert event.payload["text"].startswith("the key is ")
    assert SECRET not in str(event)


def test_the_key_determines_the_user_of_events(served: Served) -> None:
    alice = of_key(served, "alice", Scope.PUBLISH)
    told = publish(alice, TOLD, {**TOLD, "user_id": "bob"}, {**TOLD, "user_id": "system"})
    assert [one.get("code") for one in told["receipts"]] == [None, "user_not_allowed", "user_not_allowed"]
    assert [event.user_id for event in journaled(served)] == ["alice"]
    told = publish(alice, {**TOLD, "event_id": "e-9"}, user_id="bob")
    assert [one.get("code") for one in told["receipts"]] == ["user_not_allowed"]
    alice.close()


def test_without_the_scope_nothing_is_published(served: Served) -> None:
    reader = of_key(served, None, Scope.RECALL)
    answer = reader.post("events", {"events": [TOLD]})
    assert (answer.status, answer.code) == (403, "scope_missing")
    assert HttpCaller(served.http, "wrong").post("events", {"events": [TOLD]}).status == 401
    assert journaled(served) == []
    reader.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"events": {}}, 422),
        ({"events": [7]}, 422),
        ({"events": [], "colour": "red"}, 422),
        ({"events": [TOLD], "user_id": "no/folder"}, 422),
        ({"events": [TOLD], "deadline_ms": -1}, 422),
        ({"events": [TOLD] * (MOST_EVENTS + 1)}, 422),
        (7, 422),
    ],
    ids=["none", "object", "number", "unknown", "user", "deadline", "many", "text"],
)
def test_a_body_without_a_list_of_events_publishes_nothing(
    served: Served, caller: HttpCaller, body: Any, status: int
) -> None:
    assert caller.post("events", body).status == status
    assert journaled(served) == []


def test_an_empty_list_of_events_is_accepted(caller: HttpCaller) -> None:
    assert publish(caller)["receipts"] == []


def test_events_of_several_bus_messages_are_all_acknowledged(served: Served, caller: HttpCaller) -> None:
    events = [{**TOLD, "event_id": f"e-{n}", "payload": {"text": "y" * 10_000}} for n in range(400)]
    told = publish(caller, *events, deadline_ms=60_000)
    assert [one["seq"] for one in told["receipts"]] == list(range(1, 401))
    assert [event.event_id for event in journaled(served)] == [event["event_id"] for event in events]


@contextmanager
def no_commits(journal: Path) -> Iterator[None]:
    """Hold the write lock of a journal's database in another process."""
    code = f"import lmdb, sys; engine = lmdb.open({str(journal)!r}, max_dbs=16); held = engine.begin(write=True); "
    command = [sys.executable, "-c", code + "print('held', flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate()


def test_a_late_acknowledgement_is_reported_as_an_error(served: Served, caller: HttpCaller) -> None:
    with no_commits(journal_folder(served.data_dir)):
        answer = caller.post("events", {"events": [TOLD], "deadline_ms": 50})
    assert (answer.status, answer.code, answer.json()["retryable"]) == (503, "unavailable", True)
