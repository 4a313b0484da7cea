"""Test, with real processes, signals and a relay, that commands interrupted by Ctrl-C report what they have done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from memory_agent.cli.publish import Interrupts
from relay import Journal, journal_folder
from tests.memory_agent.sessions.samples import claude_line, write_lines
from tests.relay.relays import RelayProcess, wait_until

PATIENCE_S = 60.0
MORE_THAN_A_WINDOW = 6_000


@pytest.fixture
def relay() -> Iterator[RelayProcess]:
    with tempfile.TemporaryDirectory(prefix="memory-test-") as name, RelayProcess(Path(name) / "data") as process:
        yield process


def folder(relay: RelayProcess) -> str:
    return str(Path(relay.endpoints.ingest.removeprefix("ipc://")).parent.parent)


def journaled(relay: RelayProcess) -> int:
    with Journal.open(journal_folder(Path(folder(relay))), readonly=True) as journal:
        return journal.last_seq


@contextmanager
def stopped(relay: RelayProcess) -> Iterator[None]:
    os.kill(relay.ready["pid"], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(relay.ready["pid"], signal.SIGCONT)


@contextmanager
def started(*words: str, is_ignored: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Start a command that ignores SIGINT, or that has the default action for SIGINT, even if the tests ignore SIGINT
    because they run as a background job.
    """
    handler = signal.SIG_IGN if is_ignored else signal.SIG_DFL
    process = subprocess.Popen(
        [sys.executable, "-m", "memory_agent", *words, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def feed(process: subprocess.Popen[str], *numbers: int) -> None:
    assert process.stdin is not None
    for number in numbers:
        event = {"event_id": f"e-{number}", "event_type": "user_input", "user_id": "ann"}
        process.stdin.write(json.dumps(event) + "\n")


def finished(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    """Return the exit code, the JSON document on standard output, and standard error."""
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in errors, errors
    return process.returncode, json.loads(output) if output else None, errors


def repeated(*words: str) -> Any:
    with started(*words) as process:
        return finished(process)[1]


def counts(summary: Any) -> tuple[int, ...]:
    return tuple(summary[name] for name in ("published", "acknowledged", "duplicates", "unacknowledged"))


def test_publish_that_reads_a_pipe_prints_what_was_acknowledged(relay: RelayProcess) -> None:
    with started("publish", "--data-dir", folder(relay)) as process:
        feed(process, 1, 2, 3)
        wait_until(lambda: journaled(relay) == 3)
        process.send_signal(signal.SIGINT)
        code, summary, _ = finished(process)
    assert (code, counts(summary), summary["failure"]) == (130, (3, 3, 0, 0), "interrupted")


@contextmanager
def interrupted(process: subprocess.Popen[str], relay: RelayProcess) -> Iterator[None]:
    """Interrupt a command once the relay has received some of its events, and stop the relay so that no acks arrive.

    The command is interrupted while it waits for acks with a full window of events.
    """
    wait_until(lambda: journaled(relay) > 0)
    with stopped(relay):
        wait_until(lambda: is_waiting(psutil.Process(process.pid)))
        process.send_signal(signal.SIGINT)
        assert "interrupted; waiting for acks" in first_error(process)
        yield


def is_waiting(process: psutil.Process) -> bool:
    """Whether all threads of a process have been asleep for a while."""
    before = process.cpu_times()
    time.sleep(0.2)
    return process.status() == psutil.STATUS_SLEEPING and process.cpu_times() == before


def first_error(process: subprocess.Popen[str]) -> str:
    """Read one line byte by byte: a buffered read may also take the next line, which `communicate` would then miss."""
    assert process.stderr is not None
    return b"".join(iter(lambda: os.read(process.stderr.fileno(), 1).strip(b"\n"), b"")).decode()


@pytest.fixture
def many(tmp_path: Path) -> str:
    """A file with more events than a publisher sends without an ack."""
    lines = [{"event_id": f"e-{n}", "event_type": "user_input", "user_id": "ann"} for n in range(MORE_THAN_A_WINDOW)]
    return str(write_lines(tmp_path / "events.jsonl", lines))


def test_publish_that_waits_for_acks_prints_those_that_came(relay: RelayProcess, many: str) -> None:
    """The next command sends the rest, and no event is stored twice."""
    words = ("publish", many, "--data-dir", folder(relay))
    with started(*words) as process:
        with interrupted(process, relay):
            pass
        code, summary, _ = finished(process)
    done = journaled(relay)
    assert (code, counts(summary)) == (130, (done, done, 0, 0))
    assert 0 < done < MORE_THAN_A_WINDOW
    assert counts(repeated(*words)) == (MORE_THAN_A_WINDOW, MORE_THAN_A_WINDOW - done, done, 0)


def test_a_second_ctrl_c_ends_publish_at_once(relay: RelayProcess, many: str) -> None:
    with started("publish", many, "--data-dir", folder(relay)) as process, interrupted(process, relay):
        process.send_signal(signal.SIGINT)
        assert finished(process)[:2] == (130, None)


def test_watching_counts_what_was_acknowledged(relay: RelayProcess, tmp_path: Path) -> None:
    """The next command sends the rest, and no event is stored twice."""
    lines = [claude_line(number, "user", f"Write test number {number}") for number in range(MORE_THAN_A_WINDOW)]
    words = ("import-sessions", str(write_lines(tmp_path / "s.jsonl", lines)), "--data-dir", folder(relay))
    with started(*words, "--watch") as process:
        with interrupted(process, relay):
            pass
        code, result, errors = finished(process)
    done = journaled(relay)
    assert (code, result["delivered"]["new"], result["delivered"]["failure"]) == (0, done, None)
    assert "no longer watching" in errors
    again = repeated(*words)["delivered"]
    assert (again["known"], again["new"] > 0, again["known"] + again["new"]) == (done, True, journaled(relay))


def test_an_import_onto_the_files_counts_what_it_stored(tmp_path: Path) -> None:
    lines = [claude_line(number, "user", f"Write test number {number}") for number in range(200)]
    data_dir = tmp_path / "data"
    words = ("import-sessions", str(write_lines(tmp_path / "s.jsonl", lines)), "--data-dir", str(data_dir))
    with started(*words) as process:
        wait_until(lambda: any(data_dir.glob("**/data.mdb")))
        process.send_signal(signal.SIGINT)
        code, result, _ = finished(process)
    assert (code, result["delivered"]["failure"]) == (130, "interrupted")
    again = repeated(*words)["delivered"]
    assert (again["known"], again["new"] > 0) == (result["delivered"]["new"], True)


def test_publish_ignores_ctrl_c_if_its_shell_does(relay: RelayProcess) -> None:
    with started("publish", "--data-dir", folder(relay), is_ignored=True) as process:
        feed(process, 1)
        wait_until(lambda: journaled(relay) == 1)
        process.send_signal(signal.SIGINT)
        feed(process, 2)
        code, summary, _ = finished(process)
    assert (code, counts(summary)) == (0, (2, 2, 0, 0))


def test_ctrl_c_waits_for_a_step_that_it_may_not_cut_short() -> None:
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores SIGINT
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert interrupts.heard
            assert interrupts.cut_short(lambda: "another step") is None
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, former)
