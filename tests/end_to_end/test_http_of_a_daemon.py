"""Test the HTTP interface of a real daemon: its address, its streams, and a part killed during requests."""

from __future__ import annotations

import stat
import threading
from collections import Counter

from http_caller import HttpCaller, Listener
from trace_collector import Collector, lineage

from memory_agent import MemoryClient
from memory_agent.layout import Layout
from relay import Publisher, relay_endpoints
from tests.scraped import value

from .conftest import DaemonProcess
from .test_hosts_killed import killed
from .test_killed import kill_part, wait_until

VPN = "The deploy to staging hangs while the VPN is off: connect it first"
QUESTION = "why does the deploy to staging hang?"
PATIENCE_S = 120.0


def caller_of(daemon: DaemonProcess) -> HttpCaller:
    layout = Layout(daemon.data_dir)
    return HttpCaller(layout.http.read_text().strip(), layout.token())


def test_the_address_is_in_the_ready_line_in_the_status_and_in_the_folder(daemon: DaemonProcess) -> None:
    url = daemon.ready["endpoints"]["http"]
    assert Layout(daemon.data_dir).http.read_text() == f"{url}\n"
    assert stat.S_IMODE(Layout(daemon.data_dir).http.stat().st_mode) == 0o600
    with MemoryClient(data_dir=daemon.data_dir) as client:
        assert client.status().endpoints["http"] == url
    caller = caller_of(daemon)
    assert caller.post("status").json()["endpoints"]["http"] == url
    caller.close()


def test_a_remembered_fact_is_recalled_and_published_as_a_block(daemon: DaemonProcess) -> None:
    caller = caller_of(daemon)
    known = caller.post("remember", {"user_id": "http-user", "text": VPN}).json()
    found = caller.post("recall", {"user_id": "http-user", "query": QUESTION, "deadline_ms": 30_000}).json()
    assert [memory["record"]["id"] for memory in found["memories"]] == [known["id"]]
    caller.close()
    token = Layout(daemon.data_dir).token()
    path = "/v1/blocks?user_id=http-user&role=conductor"
    with (
        Listener(daemon.ready["endpoints"]["http"], token, path) as blocks,
        Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher,
    ):
        event_id = publisher.publish(
            {"event_type": "chat.user_msg", "user_id": "http-user", "payload": {"text": QUESTION}}
        )
        assert publisher.flush().acked == 1
        heard = blocks.next_event()
    assert (heard.name, heard.data["cause_event_id"]) == ("block", event_id)
    assert VPN in heard.data["block"]


def test_a_recall_is_one_trace_through_the_daemons_processes(daemon: DaemonProcess, collector: Collector) -> None:
    caller, trace = caller_of(daemon), "5" * 32
    caller.post("remember", {"user_id": "http-traced", "text": VPN})
    asked = {"user_id": "http-traced", "query": QUESTION, "deadline_ms": 30_000}
    assert caller.post("recall", asked, traceparent=f"00-{trace}-{'6' * 16}-01").json()["memories"]
    caller.close()
    spans = collector.trace(trace, 4)
    assert lineage(spans, "embedder query") == ["host recall", "daemon recall", "door recall"]
    pids = {name: span.resource["process.pid"] for name, span in spans.items()}
    assert pids["door recall"] == pids["daemon recall"] == daemon.pid
    assert len(set(pids.values())) == 3


def test_a_host_killed_during_requests_gives_a_retryable_problem(rough_daemon: DaemonProcess) -> None:
    stop, outcomes, guard = threading.Event(), Counter[tuple[int, str]](), threading.Lock()

    def ask() -> None:
        caller = caller_of(rough_daemon)
        while not stop.is_set():
            for verb, fields in (("remember", {"text": "Note of an HTTP client"}), ("recall", {"query": "a note"})):
                answer = caller.post(verb, {"user_id": "http-killed", "deadline_ms": 30_000, **fields})
                with guard:
                    outcomes[answer.status, answer.code] += 1
        caller.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    with MemoryClient("http-killed", data_dir=rough_daemon.data_dir) as client:
        for _ in range(2):
            before = outcomes[200, ""]
            wait_until(lambda before=before: outcomes[200, ""] >= before + 20)
            restarts = value(client.metrics(), "host_restarts_total")
            killed(client, "http-killed")
            wait_until(lambda restarts=restarts: value(client.metrics(), "host_restarts_total") > restarts)
    before = outcomes[200, ""]
    wait_until(lambda: outcomes[200, ""] >= before + 20)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a request hangs"
    assert set(outcomes) <= {(200, ""), (503, "host_died"), (503, "unavailable"), (503, "store_owned_elsewhere")}
    assert outcomes[503, "host_died"] > 0, outcomes


def test_a_stream_survives_a_relay_that_is_killed(rough_daemon: DaemonProcess) -> None:
    token = Layout(rough_daemon.data_dir).token()
    endpoint = relay_endpoints(rough_daemon.data_dir).ingest
    event = {"event_type": "note.taken", "user_id": "http-relay", "payload": {"text": "before"}}
    with (
        Listener(rough_daemon.ready["endpoints"]["http"], token, "/v1/events?user_id=http-relay") as events,
        Publisher(endpoint) as publisher,
    ):
        publisher.publish(event)
        assert events.next_event().data["event"]["payload"]["text"] == "before"
        kill_part(rough_daemon, "relay")
        publisher.publish(event | {"payload": {"text": "after"}})
        assert events.next_event().data["event"]["payload"]["text"] == "after"
        assert not publisher.flush(PATIENCE_S).pending
