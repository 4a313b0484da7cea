"""Test a real daemon's runs: from events, from a client and from the command line; and the expiry of abandoned runs."""

from __future__ import annotations

import json

from memory_agent import MemoryClient
from relay import Publisher, relay_endpoints

from .conftest import DaemonProcess
from .test_command_line import document, run
from .test_killed import wait_until

DEADLINE_S = 60.0


def test_a_run_published_as_events_is_listed_rated_and_learned_from(daemon: DaemonProcess) -> None:
    place = ("--user", "runner", "--data-dir", str(daemon.data_dir))
    with MemoryClient("runner", data_dir=daemon.data_dir) as client:
        known = client.remember("Token rotation races when two tabs refresh; a mutex per session fixed it")
        client.remember("Lunch is at noon")
        found = client.recall("users get signed out at random", top_k=2)
        events = [
            ("started", {"objective": "Stop the random sign-outs", "recall_id": found.recall_id}),
            ("completed", {"summary": "Two tabs refresh without a sign-out", "memory_ids": [known.id]}),
        ]
        with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
            for name, payload in events:
                event = {"event_type": f"conductor.run.{name}", "user_id": "runner", "session_id": "s-1"}
                publisher.publish(event | {"payload": {"run_id": "run-1", **payload}})
            through = publisher.flush().acked_through
        client.wait(through, DEADLINE_S)
        told = client.runs.get("run-1")
        assert told is not None
        assert (told.state, told.quality, told.recall_ids) == ("ended", 0.8, (found.recall_id,))
        assert [used.record_id for used in told.used] == [known.id]
        report = document("feedback", found.recall_id, "--used", known.id, "--quality", "1", *place)
        assert (report["trajectory_id"], report["credited"]) == ("run-1", [known.id])
        begun = client.runs.begin("Write the note about it", session_id="s-1")
        client.runs.end(begun.id, "failed", "Nobody knew what to write")
        status = client.sona.status()
        assert (status.trajectories, status.credited, status.gate.state) == (2, 1, "shadow")
    listed = document("trajectory", "list", *place)
    assert [(one["id"], one["quality"]) for one in listed] == [(begun.id, 0.0), ("run-1", 1.0)]
    refused = run("trajectory", "show", "run-404", "--json", *place)
    assert (refused.returncode, json.loads(refused.stderr)["error"]["code"]) == (1, "invalid_input")


def test_a_run_without_an_end_expires(daemon: DaemonProcess) -> None:
    begun = {
        "event_type": "conductor.run.started",
        "user_id": "idler",
        "timestamp": "2020-02-16T10:00:00Z",
        "payload": {"run_id": "run-1", "objective": "Tidy the attic"},
    }
    with (
        Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher,
        MemoryClient("idler", data_dir=daemon.data_dir) as client,
    ):
        publisher.publish(begun)
        client.wait(publisher.flush().acked_through, DEADLINE_S)
        wait_until(lambda: [run.state for run in client.runs.list()] == ["expired"])


def test_a_system_event_of_a_run_from_a_client_goes_to_its_owner(daemon: DaemonProcess) -> None:
    with (
        Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher,
        MemoryClient("beginner", data_dir=daemon.data_dir) as client,
    ):
        begun = client.runs.begin("Repair the coffee machine on the third floor")
        event = {"event_type": "conductor.run.completed", "user_id": "system"}
        publisher.publish(event | {"payload": {"run_id": begun.id, "summary": "The coffee machine has a new seal"}})
        publisher.flush()
        wait_until(lambda: (run := client.runs.get(begun.id)) is not None and run.state == "ended", DEADLINE_S)
        assert client.recall("seal of the coffee machine").memories[0].record.run_id == begun.id
