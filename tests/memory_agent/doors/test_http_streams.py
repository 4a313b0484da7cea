"""Test streams over HTTP: blocks and events in order, resuming by clients, and independence from slow readers."""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from http_caller import HttpCaller, Listener, StreamEvent
from served_gateway import Served, gateway_in_new_folder

from memory_agent import MemoryClient
from memory_agent.doors.http.streams import Stream
from memory_agent.embedders import Embedder
from memory_agent.settings import DaemonSettings, HttpSettings, Settings
from relay import (
    ALL_SCOPES,
    SHARED_USER,
    AsyncSubscriber,
    Batch,
    BrokerSettings,
    JournalSettings,
    Publisher,
    RelaySettings,
    Scope,
    Subscriber,
    create_key,
    revoke_key,
)

SETTINGS = Settings(daemon=DaemonSettings(http=HttpSettings(heartbeat_s=0.2, timeout_s=2.0, streams=32)))
VPN = "The deploy to staging hangs while the VPN is off: connect it first"
QUESTION = "why does the deploy to staging hang?"
_numbers = itertools.count(1)


class World:
    """A served folder, a publisher with a key for all users, and listeners, which are closed at the end."""

    def __init__(self, served: Served, publisher: Publisher) -> None:
        self.served = served
        self.publisher = publisher
        self.token = served.token

    def publish(self, user_id: str, text: str, event_type: str = "chat.user_msg", **fields: Any) -> str:
        """Publish an event; return its id once it is in the journal."""
        event = {"event_type": event_type, "user_id": user_id, "payload": {"text": text, **fields}}
        event_id = self.publisher.publish(event)
        assert not self.publisher.flush().pending
        return event_id

    def listen(self, what: str, token: str | None = None, after: int | None = None, **query: Any) -> Listener:
        path = f"/v1/{what}?{urlencode(query, doseq=True)}"
        return Listener(self.served.http, token or self.token, path, after)

    def key(self, user_id: str | None, *scopes: Scope) -> str:
        name = f"key-{next(_numbers)}"
        return create_key(self.served.data_dir, name, user_id, frozenset(scopes) or ALL_SCOPES).token


@pytest.fixture(scope="module")
def world(embedder: Embedder) -> Iterator[World]:
    with gateway_in_new_folder(embedder, settings=SETTINGS) as served, Publisher(served.relay.ingest) as publisher:
        yield World(served, publisher)


def texts(stream: Listener, count: int) -> list[str]:
    return [stream.next_event().data["event"]["payload"]["text"] for _ in range(count)]


def test_a_conductor_receives_the_block_of_a_message(world: World) -> None:
    with MemoryClient("cora", endpoint=world.served.gateway, token=world.token) as client:
        known = client.remember(VPN)
    with world.listen("blocks", user_id="cora", role="conductor") as blocks:
        event_id = world.publish("cora", QUESTION)
        heard = blocks.next_event()
        assert (heard.name, heard.data["cause_event_id"], heard.data["role"]) == ("block", event_id, "conductor")
        assert known.id in [memory["id"] for memory in heard.data["memories"]]
        assert VPN in heard.data["block"]


def test_only_the_wanted_blocks_are_sent(world: World) -> None:
    with (
        world.listen("blocks", user_id="dan", role="writer") as others,
        world.listen("blocks", user_id="dan", run="run-2") as of_run,
    ):
        for run_id in ("run-1", "run-2"):
            world.publish("dan", QUESTION, run_id=run_id)
        assert of_run.next_event().data["run_id"] == "run-2"
        assert next(others).name == ""  # a heartbeat with an id after the skipped event


def test_an_event_with_the_type_of_a_block_but_no_block_is_skipped(world: World) -> None:
    with world.listen("blocks", user_id="ned") as blocks, Publisher(world.served.relay.ingest) as publisher:
        publisher.publish({"event_type": "memory.recalled", "user_id": "ned", "payload": {"text": "fake"}})
        publisher.flush()
        event_id = world.publish("ned", QUESTION)
        assert blocks.next_event().data["cause_event_id"] == event_id


def test_system_receives_the_blocks_of_the_owner_of_its_run(world: World) -> None:
    with world.listen("blocks", user_id="system", run="run-of-eve") as blocks:
        event_id = world.publish("eve", QUESTION, run_id="run-of-eve")
        assert blocks.next_event().data["cause_event_id"] == event_id
    refused = world.listen("blocks", user_id="system")
    assert (refused.status, refused.problem["args"][0]) == (422, "run")
    of_one = world.listen("blocks", world.key("eve"), user_id="system", run="run-of-eve")
    assert (of_one.status, of_one.problem["code"]) == (403, "user_not_allowed")


def test_events_arrive_in_order_and_continue_where_a_client_left_off(world: World) -> None:
    said = [f"event {number}" for number in range(40)]
    with world.listen("events", user_id="fay", type="note.*") as events:
        for text in said[:20]:
            world.publish("fay", text, "note.taken")
        heard = [events.next_event() for _ in range(20)]
    assert [one.data["event"]["payload"]["text"] for one in heard] == said[:20]
    assert [one.id for one in heard] == [one.data["seq"] for one in heard]
    for text in said[20:]:
        world.publish("fay", text, "note.taken")
    with world.listen("events", after=heard[4].id, user_id="fay", type="note.*") as events:
        assert texts(events, 35) == said[5:]


def test_a_stream_has_the_events_of_its_patterns_and_its_user(world: World) -> None:
    with (
        world.listen("events", user_id="gus", type=["note.*", "chat.user_msg"]) as own,
        world.listen("events", world.key("gus", Scope.RECALL)) as of_key,
        world.listen("events", user_id="*", type="note.*") as of_all,
    ):
        world.publish("hal", "of another", "note.taken")
        world.publish("gus", "not wanted", "draft.saved")
        world.publish("gus", "wanted", "note.taken")
        assert texts(own, 1) == ["wanted"]
        assert texts(of_key, 2) == ["not wanted", "wanted"]
        assert texts(of_all, 2) == ["of another", "wanted"]


def test_a_heartbeat_advances_past_skipped_events(world: World) -> None:
    with world.listen("events", user_id="ian", type="none.such") as events:
        world.publish("ian", "passed over", "note.taken")
        with Subscriber(*world.served.relay) as subscriber:
            end = subscriber.fetch(0, 0).last_seq
        assert next(frame.id for frame in events if frame.id >= end) >= end


@pytest.mark.parametrize("what", ["blocks", "events"])
def test_a_stream_is_refused_as_the_relay_refuses_the_key(world: World, what: str) -> None:
    cases: list[tuple[str, dict[str, str], int, str]] = [
        ("wrong", {}, 401, "unauthorized"),
        (world.key("ann", Scope.PUBLISH), {}, 403, "scope_missing"),
        (world.key("ann"), {"user_id": "bob"}, 403, "user_not_allowed"),
        (world.key("ann"), {"user_id": "nobody-at-all"}, 403, "user_not_allowed"),
        (world.key("ann"), {"user_id": "a/b"}, 422, "invalid_input"),
        (world.key("ann"), {"user_id": ""}, 422, "invalid_input"),
        (world.key("ann"), {"colour": "red"}, 422, "invalid_input"),
    ]
    if what == "events":
        cases += [
            (world.key("ann"), {"user_id": "*"}, 403, "user_not_allowed"),
            (world.key(None, Scope.RECALL), {"user_id": "*"}, 403, "scope_missing"),
        ]
    for token, query, status, code in cases:
        refused = world.listen(what, token, **query)
        assert (refused.status, refused.problem["code"]) == (status, code), query
    caller = HttpCaller(world.served.http, world.token)
    for after in ("-1", "x", "9" * 30, "٣"):
        answer = caller.send("GET", f"/v1/{what}", Last_Event_ID=after.encode().decode("latin-1"))
        assert (answer.status, answer.json()["args"][0]) == (422, "Last-Event-ID"), after
    caller.close()


def test_a_stream_ends_when_its_key_is_revoked(world: World) -> None:
    token = create_key(world.served.data_dir, "for-a-while", "kim", ALL_SCOPES).token
    with world.listen("events", token) as events:
        world.publish("kim", "heard")
        assert texts(events, 1) == ["heard"]
        revoke_key(world.served.data_dir, "for-a-while")
        world.publish("kim", "not heard")
        last = [frame for frame in events if frame.name][-1]
    assert (last.name, last.data["code"]) == ("problem", "unauthorized")


def test_a_subscriber_that_stops_reading_delays_no_other(world: World) -> None:
    place = urlsplit(world.served.http)
    assert place.hostname is not None
    with (
        socket.create_connection((place.hostname, place.port)) as stuck,
        world.listen("events", user_id="lea") as reading,
    ):
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"GET /v1/events?user_id=lea HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {world.token}\r\n\r\n"
        stuck.sendall(head.encode())
        big = "much to say " * 4_000
        for number in range(150):
            world.publisher.publish(
                {"event_type": "note.taken", "user_id": "lea", "payload": {"text": f"{number} {big}"}}
            )
        assert [int(text.split()[0]) for text in texts(reading, 150)] == list(range(150))


def test_idle_streams_read_nothing_while_others_are_busy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Counter[str | None]()
    read = AsyncSubscriber.fetch

    async def counted(
        journal: AsyncSubscriber, after: int, limit: int, *, max_bytes: int, user_id: str | None = None
    ) -> Batch:
        batch = await read(journal, after, limit, max_bytes=max_bytes, user_id=user_id)
        reads[user_id] += limit > 0
        return batch

    idle = [f"idle-{number}" for number in range(8)]
    monkeypatch.setattr(AsyncSubscriber, "fetch", counted)
    monkeypatch.setattr("memory_agent.doors.http.app.Stream", lambda *given: Stream(*given[:-1], heartbeat_s=60.0))
    with ExitStack() as stack:
        streams = {user_id: stack.enter_context(world.listen("events", user_id=user_id)) for user_id in (*idle, "pia")}
        while not all(reads[user_id] for user_id in idle):
            pass  # now they wait
        for number in range(30):
            world.publish("pia", str(number), "note.taken")
            assert texts(streams["pia"], 1) == [str(number)]
        assert reads["pia"] >= 30
        assert sum(reads[user_id] for user_id in idle) == len(idle)


def test_followers_receive_the_events_of_shared_items_that_their_keys_admit(world: World) -> None:
    scopes = frozenset({Scope.RECALL, Scope.SHARE, Scope.PUBLISH})
    author, member, other = (
        create_key(world.served.data_dir, user_id, user_id, scopes, orgs=frozenset(orgs)).token
        for user_id, orgs in (("una", {"acme"}), ("vic", {"acme"}), ("wim", {"zoo"}))
    )
    with (
        MemoryClient("una", endpoint=world.served.gateway, token=author) as una,
        world.listen("events", member, user_id=SHARED_USER) as heard_by_member,
        world.listen("events", other, user_id=SHARED_USER, type="global.*") as heard_by_other,
        world.listen("events", member, user_id="vic") as own,
    ):
        for_acme = una.shared.confirm(una.shared.preview("The deploy hangs", VPN, access_policy="org:acme"))
        for_all = una.shared.confirm(una.shared.preview("The tunnel", "Restart it before a deploy"))
        frames = [heard_by_member.next_event() for _ in range(2)]
        assert una.shared.unpublish(for_acme.id).found
        frames.append(heard_by_member.next_event())
        events = [frame.data["event"] for frame in frames]
        types = ["global.published", "global.published", "global.unpublished"]
        assert [event["event_type"] for event in events] == types
        assert [event["payload"].get("item_id") for event in events] == [for_acme.id, for_all.id, None]
        assert events[2]["payload"]["item"] == events[0]["payload"]["item"]
        assert heard_by_other.next_event().data["event"] == events[1]
        for quiet in (heard_by_other, own):
            assert next(quiet).name == ""
    with world.listen("events", member, frames[0].id, user_id=SHARED_USER) as again:
        assert [again.next_event() for _ in range(2)] == frames[1:]
    world.publish(SHARED_USER, VPN)  # only the folder's owner can do this
    with MemoryClient("una", endpoint=world.served.gateway, token=world.token) as client:
        client.wait({SHARED_USER: frames[2].id + 1}, 30)
    assert world.served.host._memories[SHARED_USER].stats().memories == 1  # no event became a memory


def test_one_user_cannot_take_all_streams(world: World) -> None:
    token = world.key("mia")
    streams = [world.listen("events", token) for _ in range(8)]
    refused = world.listen("events", token)
    assert (refused.status, refused.problem["code"]) == (503, "unavailable")
    with world.listen("events", world.key("nia")) as other:
        assert other.status == 200
    streams[0].close()
    while (again := world.listen("events", token)).status != 200:
        pass  # the server notices that the client has disconnected
    for stream in (*streams[1:], again):
        stream.close()


def test_a_stream_reports_events_that_the_journal_no_longer_has() -> None:
    relay = RelaySettings(
        broker=BrokerSettings(upkeep_interval_s=0.05),
        journal=JournalSettings(retention_bytes=20_000),
    )
    with (
        gateway_in_new_folder(relay_settings=relay, settings=SETTINGS) as served,
        Publisher(served.relay.ingest) as publisher,
        Subscriber(*served.relay) as subscriber,
    ):
        world = World(served, publisher)
        for number in range(30):
            world.publish("oda", f"event {number} " + "word " * 400, "note.taken")
        while (first := subscriber.fetch(0, 1).first_seq) < 10:
            pass
        with world.listen("events", after=3, user_id="oda") as events:
            gap, entry = events.next_event(), events.next_event()
        assert gap == StreamEvent("gap", gap.data["last"], {"first": 4, "last": gap.data["last"]})
        assert gap.data["last"] >= first - 1
        assert entry.id == gap.data["last"] + 1
