"""Test that a peer that sends too many bytes must wait, and that the relay's memory stays bounded."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
import zmq
from relays import RelayProcess, mapping, wait_until

from relay import BrokerSettings, RelaySettings, Subscriber, relay_endpoints
from relay.wire import Publish, encode

TEXT = "the drill is on shelf number twelve " * 6_800
"""About 240 KB, so that the relay spends some time searching it for secrets."""
MESSAGE = 4  # events, together about a megabyte
MOST = 600  # messages
ENOUGH = 10  # messages acknowledged while more messages wait
BOUND = 300_000_000  # bytes: twice the size of a queue of 64 messages and a batch of 16, each held in several forms


def own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return memory.rss - memory.shared


def events(first: int) -> list[bytes]:
    return [json.dumps(mapping(first + place, payload={"text": TEXT})).encode() for place in range(MESSAGE)]


def flood(sender: zmq.Socket[bytes], token: bytes, relay: psutil.Process) -> tuple[int, int]:
    """Send until `ENOUGH` messages are acknowledged, or all are sent; return the message count and the peak memory."""
    sent = acked = most = 0
    while acked < ENOUGH and sent < MOST:
        ready = sender.poll(100, zmq.POLLIN | zmq.POLLOUT)
        if ready & zmq.POLLIN:
            sender.recv_multipart()
            acked += 1
        elif ready & zmq.POLLOUT:
            first = sent * MESSAGE + 1
            publish = Publish(producer_id="p", epoch=1, first_seq=first, base_seq=1, attempt=1, events=events(first))
            sender.send_multipart([b"", encode(publish), token])
            sent += 1
        most = max(most, own_bytes(relay))
    return sent, most


def test_a_publisher_that_sends_on_without_waiting_for_acks_waits_by_bytes(data_dir: Path) -> None:
    relay = RelayProcess(data_dir).start()
    process = psutil.Process(relay.ready["pid"])
    before = own_bytes(process)
    token = (data_dir / "token").read_bytes().strip()
    with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
        sender.linger = 0
        sender.sndhwm = 1
        sender.connect(relay_endpoints(data_dir).ingest)
        sent, most = flood(sender, token, process)
    assert sent < MOST
    assert most - before < BOUND
    relay.stop()


@pytest.mark.parametrize("bound_bytes", [1, 3 << 20])
def test_a_group_commit_is_bounded_in_bytes_and_takes_at_least_one_message(data_dir: Path, bound_bytes: int) -> None:
    broker = BrokerSettings(max_batch_bytes=bound_bytes)
    relay = RelayProcess(data_dir, RelaySettings(broker=broker)).start()
    token = (data_dir / "token").read_bytes().strip()
    messages = 12
    with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
        sender.connect(relay_endpoints(data_dir).ingest)
        for number in range(messages):
            first = number * MESSAGE + 1
            publish = Publish(producer_id="p", epoch=1, first_seq=first, base_seq=1, attempt=1, events=events(first))
            sender.send_multipart([b"", encode(publish), token])
        with Subscriber(*relay_endpoints(data_dir)) as reader:
            wait_until(lambda: reader.stats().journal.last_seq == messages * MESSAGE, 60.0)
            assert reader.stats().counts["batches"] >= messages * 900_000 // (bound_bytes + 1_000_000)
    relay.stop()
