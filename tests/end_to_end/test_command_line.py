"""Test the command line against a real daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_agent.errors import UnavailableError
from memory_agent.evaluation import temporary_daemon
from memory_agent.settings import Settings
from relay import BrokerSettings, BusSettings

from .conftest import DaemonProcess, environment, invoke

ENGINES = ("ray", "onnxruntime", "onnx", "tokenizers", "safetensors", "usearch")
PROBE = """
import json, sys
from memory_agent.cli.group import cli
cli(json.loads(sys.argv[1]), standalone_mode=False)
print("LOADED " + json.dumps(sorted(set(sys.modules) & set(json.loads(sys.argv[2])))))
"""


def run(*words: str, input: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `memory-agent WORDS` as a process."""
    return subprocess.run(
        [sys.executable, "-m", "memory_agent", *words],
        input=input,
        capture_output=True,
        text=True,
        env=environment() | variables,
        timeout=120,
        check=False,
    )


def document(*words: str, input: str = "") -> Any:
    done = invoke(*words, "--json", input=input)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def message(text: str, **fields: Any) -> str:
    return json.dumps({"event_type": "chat.user_msg", "payload": {"text": text}, **fields}) + "\n"


def test_published_events_are_recallable_when_wait_returns(daemon: DaemonProcess) -> None:
    place = ("--user", "cli-wait", "--data-dir", str(daemon.data_dir))
    lines = "".join(message(f"Ticket {number}: the export of invoices fails.") for number in range(40))
    summary = document("publish", "--wait", *place, input=lines)
    assert (summary["published"], summary["acknowledged"], summary["rejected"]) == (40, 40, 0)
    assert summary["recallable_s"] >= summary["acknowledged_s"]
    stats = document("stats", *place)
    assert (stats["memories"], stats["daemon"]["dispatched"]["lag"]) == (40, 0)
    found = document("recall", "Ticket 17 invoices", "--mode", "lexical", "--top-k", "1", *place)
    assert found["memories"][0]["record"]["text"] == "Ticket 17: the export of invoices fails."


def test_wait_reports_event_types_that_no_signal_keeps(daemon: DaemonProcess) -> None:
    place = ("--user", "cli-types", "--data-dir", str(daemon.data_dir))
    others = [{"event_type": f"my.{name}", "payload": {"text": f"hello {at}"}} for at, name in enumerate("babab")]
    lines = message("Staging needs the VPN.") + "\n".join(map(json.dumps, others))
    assert document("publish", "--wait", *place, input=lines)["not_kept"] == {"my.a": 2, "my.b": 3}
    done = run("publish", "--wait", *place, input=lines)
    assert done.returncode == 0
    assert "dropped, because no row of the signal table matches their type: my.b 3, my.a 2;" in done.stdout
    mixed = run("publish", "--wait", "--json", *place, input=lines + '\n{"event_type": "my.a", "payload": "hello"}')
    assert (mixed.returncode, json.loads(mixed.stdout)["not_kept"]) == (1, {"my.a": 2, "my.b": 3})
    assert document("stats", *place)["dropped_types"] == {"my.a": 2, "my.b": 3}


def test_remember_and_recall_through_the_daemon_and_load_no_engine(daemon: DaemonProcess) -> None:
    place = ["--user", "cli-remember", "--data-dir", str(daemon.data_dir)]
    record = document("remember", "Staging needs the VPN.", "--tag", "deploy", *place)
    words = json.dumps(["recall", "what does staging need", "--json", *place])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, words, json.dumps(ENGINES)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=True,
    )
    answer, _, loaded = done.stdout.rpartition("LOADED ")
    assert [memory["record"]["id"] for memory in json.loads(answer)["memories"]] == [record["id"]]
    assert loaded == "[]\n"


def test_an_endpoint_and_a_token_are_enough(daemon: DaemonProcess, tmp_path: Path) -> None:
    endpoint = f"ipc://{daemon.data_dir}/run/gateway.sock"
    token = (daemon.data_dir / "token").read_text().strip()
    words = ("stats", "--endpoint", endpoint, "--data-dir", str(tmp_path), "--json")
    assert json.loads(run(*words, MEMORY_AGENT_TOKEN=token).stdout)["daemon"]["version"]
    refused = run(*words, MEMORY_AGENT_TOKEN="wrong")
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["error"]["code"] == "unauthorized"


def test_stats_show_every_part_with_its_memory(daemon: DaemonProcess) -> None:
    place = ("--user", "cli-stats", "--data-dir", str(daemon.data_dir))
    parts = {part["name"]: part for part in document("stats", *place)["daemon"]["parts"]}
    assert {"daemon", "relay", "embedder"} <= set(parts)
    assert parts["daemon"]["pid"] == daemon.pid
    assert all(part["resident_bytes"] > 0 and part["state"] == "running" for part in parts.values())
    shown = run("stats", *place).stdout
    assert "resident in all:" in shown
    assert "without Ray's own processes" in shown
    assert "\nconsumer memory " in shown
    state = document("status", "--data-dir", str(daemon.data_dir))
    assert {part["name"] for part in state["parts"]} >= set(parts)
    assert state["version"] in run("status", "--data-dir", str(daemon.data_dir)).stdout


def test_a_setting_for_a_running_daemon_is_reported_to_have_no_effect(daemon: DaemonProcess) -> None:
    done = run("recall", "x", "--set", "recall.vector_weight=0.1", "--data-dir", str(daemon.data_dir))
    assert done.returncode == 0
    assert "note: the daemon keeps its own settings" in done.stderr


def test_the_doctor_asks_the_daemon(daemon: DaemonProcess) -> None:
    report = document("doctor", "--data-dir", str(daemon.data_dir))
    assert report["healthy"] is True
    (check,) = [check for check in report["checks"] if check["name"] == "daemon"]
    assert check["state"] == "ok"
    assert "is running" in check["detail"]


def test_quarantined_events_are_listed_kept_while_they_fail_and_dropped(rough_daemon: DaemonProcess) -> None:
    place = ("--data-dir", str(rough_daemon.data_dir))
    document("publish", "--wait", "--user", "system", *place, input=message("Whose is this?", session_id="s-404"))
    (entry,) = document("quarantine", "list", *place)
    assert entry["code"] == "owner_unknown"
    retried = run("quarantine", "retry", str(entry["id"]), "--json", *place)
    assert (retried.returncode, json.loads(retried.stdout)) == (1, {"handled": 0, "still_failing": 1})
    unknown = run("quarantine", "drop", "999999", *place)
    assert (unknown.returncode, "999999" in unknown.stderr) == (1, True)
    assert document("quarantine", "drop", "--all", *place) == {"dropped": 1}
    assert document("quarantine", "list", *place) == []


def test_a_second_daemon_on_the_same_folder_is_refused(daemon: DaemonProcess) -> None:
    done = run("serve", "--data-dir", str(daemon.data_dir))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"a daemon already serves {daemon.data_dir} (process {daemon.pid})" in done.stderr


def test_an_evaluation_without_a_daemon_starts_and_stops_its_own(tmp_path: Path) -> None:
    file = write_conversation(tmp_path)
    report = document("eval", "locomo", str(file))
    assert (report["embedded"], report["events"], report["questions"]) == (False, 2, 1)
    assert report["recall_at"]["1"] == 1.0
    assert report["events_per_s"] > 0


def test_an_evaluation_can_use_a_running_daemon(daemon: DaemonProcess, tmp_path: Path) -> None:
    words = ("--data-dir", str(daemon.data_dir), "--user", "cli-eval")
    assert document("eval", "locomo", str(write_conversation(tmp_path)), *words)["recall_at"]["1"] == 1.0
    assert document("stats", "--user", "cli-eval-0", *words[:2])["memories"] == 2


def test_a_daemon_that_cannot_start_says_why() -> None:
    settings = Settings(relay=BusSettings(broker=BrokerSettings(pub_bind=("tcp://256.0.0.1:1",))))
    with pytest.raises(UnavailableError, match="did not start"), temporary_daemon(settings):
        pass


def write_conversation(folder: Path) -> Path:
    turns = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "I bought a kiln for the garage."},
        {"speaker": "Ben", "dia_id": "D1:2", "text": "My daughter plays the cello."},
    ]
    questions = [{"question": "Who plays the cello?", "evidence": ["D1:2"], "category": 4}]
    conversation = {"session_1": turns, "session_1_date_time": "1:56 pm on 8 May, 2023"}
    file = folder / "locomo.json"
    file.write_text(json.dumps([{"conversation": conversation, "qa": questions}]))
    return file
