"""Test a real daemon's blocks in a client and on the command line, and that each cause has one block after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from memory_agent import MemoryClient
from memory_agent.client import Blocks
from memory_agent.layout import CONSUMER
from memory_agent.triggers.block import RECALLED, Block
from relay import JournalSettings, Publisher, Subscriber, journal_folder, relay_endpoints, rewind

from .conftest import DaemonProcess, environment, invoke
from .test_killed import part_pid, wait_until

PATIENCE_S = 90.0
VPN = "The deploy to staging hangs while the VPN is off: connect it first"
QUESTION = "why does the deploy to staging hang?"
PATIENT = "[trigger.message]\ndeadline_ms = 600_000\n"


def publish_message(daemon: DaemonProcess, user_id: str, text: str) -> str:
    """Publish a message; return its id once it is acknowledged."""
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        event = {"event_type": "chat.user_msg", "user_id": user_id, "payload": {"text": text}}
        event_id = publisher.publish(event)
        assert publisher.flush().acked == 1
    return event_id


def the_next(blocks: Blocks) -> Block:
    block = blocks.wait(PATIENCE_S)
    assert block is not None
    return block


def causes(daemon: DaemonProcess, user_id: str) -> Counter[str]:
    """Count the blocks in the journal by cause."""
    with Subscriber(*relay_endpoints(daemon.data_dir)) as subscriber:
        entries = subscriber.fetch(0, 10_000, user_id=user_id).entries
    return Counter(Block.of_event(entry.data).cause_event_id for entry in entries if entry.event_type == RECALLED)


def test_a_conductor_and_the_command_line_receive_the_block_of_a_message(daemon: DaemonProcess) -> None:
    command = [sys.executable, "-m", "memory_agent", "blocks", "--user", "block-reader", "--role", "conductor"]
    command += ["--count", "2", "--data-dir", str(daemon.data_dir)]
    with (
        ExitStack() as stack,
        MemoryClient("block-reader", data_dir=daemon.data_dir) as memory,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        ) as following,
        memory.blocks(role="conductor") as blocks,
    ):
        assert following.stdout is not None
        assert following.stderr is not None
        stack.callback(following.kill)  # otherwise a failed assertion would wait for the process to end
        assert "blocks for conductor, caused by chat.user_msg, user_input; stop" in following.stderr.readline()
        known = memory.remember(VPN)
        said = [
            publish_message(daemon, "block-reader", QUESTION),
            publish_message(daemon, "block-reader", "which index do orders need?"),
        ]
        read = {block.cause_event_id: block for block in (the_next(blocks), the_next(blocks))}
        assert [one.id for one in read[said[0]].memories] == [known.id]
        assert read[said[1]].text == ""
        printed = following.stdout.read()
        assert VPN in printed
        assert "nothing relevant" in printed
        assert memory.status().triggers["published"] >= 2


def test_a_role_that_no_trigger_has_is_noted(daemon: DaemonProcess) -> None:
    ran = invoke("blocks", "--role", "conducter", "--timeout", "0.2", "--data-dir", str(daemon.data_dir))
    assert (ran.exit_code, "has no role conducter, only conductor, worker, writer" in ran.stderr) == (1, True)


def test_a_follower_without_events_ends_at_its_timeout(daemon: DaemonProcess) -> None:
    words = ("blocks", "--user", "nobody-speaks", "--timeout", "0.2", "--json")
    done = invoke(*words, "--data-dir", str(daemon.data_dir))
    assert (done.exit_code, done.stdout) == (1, "")


def test_a_table_with_an_error_stops_the_daemon_with_the_line(daemon: DaemonProcess) -> None:
    table = daemon.data_dir / "bad.toml"
    table.write_text("[trigger.message]\n\ntop_k = 0\n", encoding="utf-8")
    command = [sys.executable, "-m", "memory_agent", "serve", "--json", "--set", f"triggers.table={table}"]
    done = subprocess.run(
        [*command, "--data-dir", str(daemon.data_dir / "other")],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"]) == (1, "settings")
    assert "trigger.message.top_k" in error["message"]
    assert "line 3" in error["message"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pid_of(daemon: DaemonProcess, name: str) -> int:
    pid = part_pid(daemon, name)
    assert pid is not None
    return pid


@pytest.mark.timeout(400)
def test_a_daemon_killed_before_its_block_is_in_the_journal_publishes_one_block(own_full_daemon: DaemonProcess) -> None:
    """The first kill comes after the recall and before the block is published. The second comes after the block is
    published and before the cursor is committed.
    """
    table = own_full_daemon.data_dir / "patient.toml"
    table.write_text(PATIENT, encoding="utf-8")
    own_full_daemon.configure(f"triggers.table={table}")
    own_full_daemon.start()
    with MemoryClient("alice", data_dir=own_full_daemon.data_dir) as memory, memory.blocks() as blocks:
        known = memory.remember(VPN)
        relay, host = pid_of(own_full_daemon, "relay"), pid_of(own_full_daemon, "user-alice")
        with stopped(host):
            said = publish_message(own_full_daemon, "alice", QUESTION)
            wait_until(lambda: memory.status().dispatched.get("read", 0) == 1)
            os.kill(relay, signal.SIGSTOP)
        wait_until(lambda: "block.published" in own_full_daemon.log())  # sent to the relay, but not accepted
        own_full_daemon.kill()
        os.kill(relay, signal.SIGKILL)

        own_full_daemon.light = True  # reads the same files
        own_full_daemon.start()
        block = the_next(blocks)
        assert (block.cause_event_id, [one.id for one in block.memories]) == (said, [known.id])
        assert causes(own_full_daemon, "alice") == {said: 1}

        own_full_daemon.kill()
        rewind(journal_folder(own_full_daemon.data_dir), JournalSettings(), {CONSUMER: 0})
        own_full_daemon.start()
        last = publish_message(own_full_daemon, "alice", "where is the canteen?")
        assert the_next(blocks).cause_event_id == last
        assert causes(own_full_daemon, "alice") == {said: 1, last: 1}
        assert memory.status().journal["counts"]["duplicates"] >= 1
    assert own_full_daemon.stop() == 0
