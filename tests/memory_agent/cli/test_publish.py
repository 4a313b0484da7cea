"""Test `publish` with and without a real relay process."""

from __future__ import annotations

import codecs
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli
from memory_agent.cli.publish import Summary, print_summary
from relay import Journal, journal_folder, read_event

Publish = Callable[..., Result]


class Relay:
    """`python -m relay` on a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "relay", "--data-dir", str(folder), "--log-level", "error"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.ready = json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)

    def journaled(self) -> list[tuple[str, str]]:
        """Return the user and text of each of the journal's events, in order, read while the relay runs."""
        with Journal.open(journal_folder(self.folder), readonly=True) as journal:
            events = [read_event(entry.data) for entry in journal.read(0, 10_000)]
        return [(event.user_id, event.payload["text"]) for event in events]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="memory-test-") as name:
        yield Path(name)


@pytest.fixture
def relay(folder: Path) -> Iterator[Relay]:
    process = Relay(folder)
    yield process
    process.stop()


@pytest.fixture
def publish(folder: Path) -> Publish:
    def run(*words: str, lines: list[str] | None = None) -> Result:
        text = "\n".join(lines or [])
        return CliRunner().invoke(cli, ["publish", *words, "--data-dir", str(folder)], input=text)

    return run


def line(text: str, **fields: Any) -> str:
    return json.dumps({"event_type": "chat.user_msg", "event_id": text, "payload": {"text": text}, **fields})


def counts(result: Result) -> tuple[int, ...]:
    document = json.loads(result.stdout)
    return tuple(document[name] for name in ("published", "acknowledged", "duplicates", "rejected", "spooled"))


def test_published_events_are_on_the_disk_in_order_with_a_bar_on_a_terminal(
    publish: Publish, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(line(f"text {number}", user_id="alice") for number in range(1000)))
    result = publish(str(file))
    assert result.exit_code == 0, result.output
    assert result.stdout == "published 1000, acknowledged 1000, duplicates 0, rejected 0\n"
    assert result.stderr == ""
    assert relay.journaled() == [("alice", f"text {number}") for number in range(1000)]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert "1000/1000" in publish(str(file)).stderr


def test_a_byte_order_mark_and_windows_line_endings_are_accepted(
    publish: Publish, relay: Relay, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    text = "\r\n".join(line(f"text {number}", user_id="alice") for number in range(3))
    file.write_bytes(codecs.BOM_UTF8 + text.encode())
    result = publish(str(file))
    assert result.exit_code == 0, result.output
    assert relay.journaled() == [("alice", f"text {number}") for number in range(3)]


def test_repeats_are_recognised_and_counted(publish: Publish, relay: Relay) -> None:
    lines = [line("one", user_id="alice"), line("two", user_id="alice")]
    assert counts(publish("--json", lines=lines)) == (2, 2, 0, 0, 0)
    again = publish("--json", lines=[*lines, line("three", user_id="alice")])
    assert counts(again) == (3, 1, 2, 0, 0)
    assert json.loads(again.stdout)["acked_through"] == {"alice": 3}
    assert [text for _, text in relay.journaled()] == ["one", "two", "three"]


def test_a_bad_line_is_named_by_number_and_field_and_the_others_are_sent(publish: Publish, relay: Relay) -> None:
    lines = [
        line("good", user_id="alice"),
        "",
        "{broken",
        "[1, 2]",
        line("no user"),
        line("unsafe", user_id="../x"),
        line("future", user_id="alice", timestamp="2999-01-01T00:00:00Z"),
        json.dumps({"user_id": "alice"}),
        line("large", user_id="alice", padding="x" * 300_000),
        '{"event_type": "user_input", "user_id": "alice", "payload": {"text": "infinite", "value": 1e999}}',
        line("last", user_id="alice"),
    ]
    result = publish("--json", lines=lines)
    assert result.exit_code == 1
    assert counts(result) == (2, 2, 0, 8, 0)
    named = [(bad["line"], bad["field"]) for bad in json.loads(result.stdout)["bad_lines"]]
    assert named == [
        (3, "event"),
        (4, "event"),
        (5, "user_id"),
        (6, "user_id"),
        (7, "timestamp"),
        (8, "event_type"),
        (9, "event"),
        (10, "event"),
    ]
    assert "error: line 4: event: is not a JSON object\n" in result.stderr
    assert "error: line 10: event: is not JSON: Number out of range\n" in result.stderr
    assert "error: line 5: user_id: is missing; --user NAME sets the user for events that name none\n" in result.stderr
    assert [text for _, text in relay.journaled()] == ["good", "last"]


def test_of_many_bad_lines_the_first_twenty_are_shown_and_all_are_counted(publish: Publish, relay: Relay) -> None:
    result = publish("--json", lines=[line(str(number)) for number in range(50)])
    assert (result.exit_code, counts(result)) == (1, (0, 0, 0, 50, 0))
    assert len(json.loads(result.stdout)["bad_lines"]) == 50
    shown = result.stderr.splitlines()
    assert [text.startswith("error: line ") for text in shown] == [True] * 20 + [False]
    assert shown[-1] == "note: further bad lines are only counted; --json lists the first 1,000"


def test_only_an_explicit_user_owns_the_events_without_one(publish: Publish, relay: Relay) -> None:
    lines = [line("mine"), line("hers", user_id="alice")]
    assert publish("--user", "bob", lines=lines).exit_code == 0
    assert relay.journaled() == [("bob", "mine"), ("alice", "hers")]
    refused = publish(lines=[line("nobody's")])
    assert (refused.exit_code, "line 1: user_id: is missing" in refused.stderr) == (1, True)


def test_a_spool_keeps_events_while_the_relay_is_away_and_the_next_publish_sends_them(
    publish: Publish, folder: Path, tmp_path: Path
) -> None:
    spool = str(tmp_path / "spool")
    kept = publish("--spool", spool, "--json", lines=[line("one", user_id="alice"), line("two", user_id="alice")])
    assert kept.exit_code == 0, kept.output
    assert counts(kept) == (2, 0, 0, 0, 2)
    relay = Relay(folder)
    try:
        sent = publish("--spool", spool, "--json", lines=[line("three", user_id="alice")])
        assert sent.exit_code == 0, sent.output
        assert json.loads(sent.stdout)["spooled"] == 0
        assert [text for _, text in relay.journaled()] == ["one", "two", "three"]
    finally:
        relay.stop()


def test_without_a_relay_the_answer_is_prompt_and_says_how_to_start_one(publish: Publish, folder: Path) -> None:
    result = publish(lines=[line("one", user_id="alice")])
    assert result.exit_code == 1
    assert f"memory-agent serve --data-dir {folder}" in result.stderr
    assert "--spool DIR" in result.stderr


def test_waiting_needs_the_daemon_and_not_only_the_relay(publish: Publish, relay: Relay) -> None:
    result = publish("--wait", lines=[line("one", user_id="alice")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "memory-agent serve --data-dir" in result.stderr


def test_a_relay_elsewhere_is_named_by_its_endpoint(publish: Publish, relay: Relay, tmp_path: Path) -> None:
    words = ["publish", "--relay", relay.ready["ingest"], "--data-dir", str(tmp_path)]
    token = (relay.folder / "token").read_text().strip()
    refused = CliRunner().invoke(cli, words, input=line("far", user_id="alice"))
    assert (refused.exit_code, "the token is missing" in refused.output) == (1, True)
    result = CliRunner().invoke(cli, words, input=line("far", user_id="alice"), env={"MEMORY_AGENT_TOKEN": token})
    assert result.exit_code == 0, result.output
    assert relay.journaled() == [("alice", "far")]


def test_the_daemons_request_endpoint_is_not_mistaken_for_the_relays(tmp_path: Path) -> None:
    words = ["publish", "--data-dir", str(tmp_path), "--endpoint", "tcp://127.0.0.1:1"]
    refused = CliRunner().invoke(cli, words, input=line("far", user_id="alice"))
    assert refused.exit_code == 1
    assert "--relay URL (the daemon's setting relay.broker.listen)" in refused.stderr
    named = CliRunner().invoke(cli, [*words, "--relay", "tcp://127.0.0.1:1"], input=line("far", user_id="alice"))
    assert "at tcp://127.0.0.1:1; to have a daemon listen there, set relay.broker.listen" in named.stderr


def test_of_many_dropped_types_the_most_frequent_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    types = {f"my.type-{number}": number for number in range(1, 31)}
    print_summary(Summary(published=465, acknowledged=465, recallable_s=0.1, not_kept=types))
    said = capsys.readouterr().out
    assert "their type: my.type-30 30, my.type-29 29, " in said
    assert "my.type-21 21, and 20 more types; to keep them, add a row" in said


def test_waiting_does_not_report_unarrived_events_as_handled(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(Summary(published=0, rejected=3, recallable_s=0.004))
    print_summary(Summary(published=2, rejected=2, recallable_s=0.004))
    nothing = capsys.readouterr().out
    assert nothing.count("nothing arrived, so there was nothing to wait for") == 2
    assert "handled" not in nothing
    print_summary(Summary(published=1, duplicates=1, recallable_s=0.004))
    assert "all handled after 0.004 s" in capsys.readouterr().out
