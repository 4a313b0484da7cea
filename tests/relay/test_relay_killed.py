"""Test that acknowledged events of killed publishers are stored once, in order. `tests/crash` kills relays."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from relays import RelayProcess, mapping, wait_until

from relay import Publisher, PublisherSettings, Subscriber, relay_endpoints

PROGRAM = Path(__file__).with_name("publish_numbered.py")
EVENTS = 1_500


def start(ingest: str, producer: str, acked: Path, *spool: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(PROGRAM), ingest, producer, str(EVENTS), str(acked), *spool])


def acknowledged(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def history(subscriber: Subscriber) -> list[tuple[str, str]]:
    """Return every entry in the journal as (producer, event_id), in order."""
    found: list[tuple[str, str]] = []
    after = 0
    while batch := subscriber.fetch(after, 1_000).entries:
        after = batch[-1].seq
        events = [msgspec.msgpack.decode(entry.data) for entry in batch]
        found += [(event["actor_id"], event["event_id"]) for event in events]
    return found


def check(journaled: list[tuple[str, str]], acked: dict[str, list[str]]) -> None:
    times = Counter(event_id for _, event_id in journaled)
    assert [event_id for event_id, count in times.items() if count > 1] == []
    for producer, ids in acked.items():
        own = [event_id for one, event_id in journaled if one == producer]
        assert own == sorted(own), "a producer's events are out of order"
        assert set(ids) - set(own) == set(), "an acknowledged event is missing"


@pytest.mark.slow
def test_a_killed_publisher_that_restarts_duplicates_nothing(data_dir: Path, tmp_path: Path) -> None:
    acked, spool = tmp_path / "acked.txt", str(tmp_path / "spool")
    with RelayProcess(data_dir) as relay:
        for turn in range(1, 4):
            publisher = start(relay.endpoints.ingest, "p", acked, spool)
            try:
                wait_until(lambda turn=turn: len(acknowledged(acked)) >= turn * 200, 60.0)  # type: ignore[misc]
            finally:
                publisher.kill()
                publisher.wait()
        last = start(relay.endpoints.ingest, "p", acked, spool)
        assert last.wait(120) == 0
        with Subscriber(*relay.endpoints) as subscriber:
            journaled = history(subscriber)
        check(journaled, {"p": sorted(set(acknowledged(acked)))})
        assert len(journaled) == EVENTS


@pytest.mark.slow
def test_the_spool_of_a_killed_publisher_is_delivered_by_the_next(data_dir: Path, tmp_path: Path) -> None:
    """No relay runs until the publisher has been killed. An event must survive SIGKILL once `publish` has returned."""
    program = (
        "import sys, json, pathlib; from relay import Publisher, PublisherSettings\n"
        "settings = PublisherSettings(window=1, ack_timeout_s=0.05)\n"
        "publisher = Publisher(sys.argv[1], settings=settings, spool=pathlib.Path(sys.argv[2]))\n"
        "number = 0\n"
        "while True:\n"
        "    publisher.publish({'event_id': f'e-{number:06d}', 'event_type': 'a.b', 'user_id': 'u', 'actor_id': 'p'})\n"
        "    print(number, flush=True)\n"
        "    number += 1\n"
    )
    ingest = relay_endpoints(data_dir).ingest
    (data_dir / "run").mkdir(parents=True)
    publisher = subprocess.Popen(
        [sys.executable, "-c", program, ingest, str(tmp_path / "spool")], stdout=subprocess.PIPE, text=True
    )
    assert publisher.stdout is not None
    with publisher.stdout:
        taken = [int(publisher.stdout.readline()) for _ in range(60)]
        publisher.kill()
        publisher.wait()
    settings = PublisherSettings(ack_timeout_s=0.2)
    with RelayProcess(data_dir) as relay:
        with Publisher(ingest, settings=settings, spool=tmp_path / "spool") as next_one:
            next_one.publish(mapping(1, event_id="z-last", actor_id="p"))
            assert next_one.flush().spooled == 0
        with Subscriber(*relay.endpoints) as subscriber:
            journaled = [event_id for _, event_id in history(subscriber)]
    assert journaled[-1] == "z-last"
    assert journaled == sorted(set(journaled))
    missing = {f"e-{number:06d}" for number in taken} - set(journaled)
    assert missing == set()
