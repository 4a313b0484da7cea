"""Test erasing events out of order: their numbers become gaps, their bytes are removed, and their ids are
still recognised.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from relays import NOW, event, later, wait_until
from structlog.testing import CapturingLogger

from relay import (
    AsyncSubscriber,
    Broker,
    BrokerSettings,
    Erasable,
    Event,
    Journal,
    JournalSettings,
    ProtocolError,
    Publisher,
    RelaySettings,
    RelayUnavailableError,
    Subscriber,
    answers,
    wire,
)
from relay import broker as broker_module
from relay.broker import _REST, _Upkeep
from relay.disk import Findings
from relay.journal import check_journal

SECRET = "zanzibarquokka"
PATIENCE_S = 0.2


def bytes_below(folder: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def secret(number: int, user_id: str = "alice", **fields: Any) -> Event:
    payload = {"text": f"{SECRET} {number}" + "x" * 6_000 * (number % 2), **fields.pop("payload", {})}
    return event(number, user_id, payload=payload, **fields)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal") as journal:
        journal.append([event(number, "bob") for number in range(100, 140)], NOW)
        journal.append(
            [
                secret(1),
                event(2, session_id="other"),
                secret(3, session_id="s-1"),
                secret(4, "system", payload={"run_id": "run-1"}),
                secret(5, "system", session_id="s-1"),
                event(6, "system", session_id="s-2"),
            ],
            NOW,
        )
        journal.quarantine(secret.__name__.encode() + SECRET.encode(), "code", "why", "memory:alice", NOW, 43)
        journal.quarantine(
            b'{"user_id": "alice", "session_id": "s-1", "x": "' + SECRET.encode() + b'"', "c", "r", "p", NOW
        )
        yield journal


def left(journal: Journal) -> list[int]:
    return [entry.seq for entry in journal.read(0, 1_000) if entry.seq > 40]


def test_events_are_erased_by_id_session_and_run_and_leave_gaps(journal: Journal) -> None:
    assert journal.erase(Erasable(user_id="alice", event_ids=frozenset({"event-000001"})), NOW).seqs == [41]
    assert left(journal) == [42, 43, 44, 45, 46]
    wanted = Erasable(user_id="alice", session_ids=frozenset({"s-1"}), run_ids=frozenset({"run-1"}))
    assert journal.erase(wanted, NOW, dry_run=True).seqs == [43], "naming a session proves nothing"
    wanted = msgspec.structs.replace(wanted, system_seqs=frozenset({1, 44, 45}))  # 1 is bob's
    assert journal.erase(wanted, NOW, dry_run=True).seqs == [43, 44, 45]
    assert journal.erase(wanted, NOW).seqs == [43, 44, 45]
    assert left(journal) == [42, 46]
    assert journal.erase(wanted, NOW).seqs == []
    assert [entry.seq for entry in journal.read(0, 10, user_id="alice")] == [42]
    assert journal.last_seq == 46


def test_events_that_quote_erased_ids_are_erased_too(journal: Journal) -> None:
    quoting = [["m-1", "m-2"], ["m-3"], "m-1", None, [["m-1"], 7]]
    added = journal.append(
        [event(200 + number, "alice", payload={"quotes": one}) for number, one in enumerate(quoting)], NOW
    )
    journal.append([event(300, "bob", payload={"quotes": ["m-1"]})], NOW)
    wanted = Erasable(user_id="alice", quoted=frozenset({"m-1", "m-9"}))
    assert journal.erase(wanted, NOW).seqs == [added[0].seq]


def test_a_users_events_leave_the_file_and_a_repeat_is_still_known(journal: Journal, tmp_path: Path) -> None:
    erased = journal.erase(Erasable(user_id="alice", everything=True, system_seqs=frozenset({44, 45})), NOW)
    assert (erased.seqs, erased.quarantined) == ([41, 42, 43, 44, 45], 1)
    assert SECRET.encode() in bytes_below(tmp_path)
    for entry in journal.quarantined():
        journal.drop(entry.id)  # truncated, and from an unknown sender, so its user is unknown
    assert journal.uncompacted == 6
    journal.compact()
    assert journal.uncompacted == 0
    assert SECRET.encode() not in bytes_below(tmp_path)
    assert journal.append([secret(1)], NOW)[0].duplicate
    assert journal.append([event(7)], NOW)[0].seq == 47
    assert len(journal.read(0, 1_000, user_id="bob")) == 40
    journal.close()
    findings = Findings()
    check_journal(tmp_path / "journal", JournalSettings(), findings, lambda *_: None)
    assert findings.listed() == ()


def test_erasure_works_in_parts(journal: Journal) -> None:
    journal.erase(Erasable(user_id="bob", everything=True), NOW, dry_run=True)
    seqs, after = [], 0
    while after is not None:
        part = journal._erasure.erase(Erasable(user_id="bob", everything=True, after_seq=after), NOW, limit=7)
        seqs, after = seqs + part.seqs, part.next_after  # type: ignore[assignment]
    assert seqs == list(range(1, 41))


def test_appends_and_reads_continue_around_compactions(journal: Journal) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            number = 1_000
            while not stop.is_set():
                assert not journal.append([event(number)], later(1))[0].duplicate
                assert journal.read(0, 5)
                number += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        journal.compact()
    stop.set()
    thread.join()
    assert not failures


def test_a_relay_erases_and_its_upkeep_clears_the_file(tmp_path: Path) -> None:
    settings = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.05))
    with Broker(tmp_path, settings) as broker:
        with Publisher(broker.endpoints.ingest) as publisher:
            for number in range(30):
                publisher.publish(secret(number) if number % 3 else event(number, "bob"))
            publisher.flush()
        with Subscriber(*broker.endpoints) as subscriber:
            assert len(subscriber.erase(Erasable(user_id="alice", everything=True)).seqs) == 20
            wait_until(lambda: subscriber.stats().journal.uncompacted == 0)
            assert len(subscriber.fetch(0, 100).entries) == 10
        assert SECRET.encode() not in bytes_below(tmp_path / "journal")


def test_upkeep_rests_between_compactions_as_long_as_they_made_writers_wait_and_more(journal: Journal) -> None:
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 10.0  # a compaction takes 10 s, because each reading advances the clock by 10 s
        return now_s[0]

    upkeep = _Upkeep(journal, 30.0, clock)
    journal.erase(Erasable(user_id="alice", event_ids=frozenset({"event-000001"})), NOW)
    upkeep.step()
    assert journal.uncompacted == 0
    journal.erase(Erasable(user_id="alice", everything=True), NOW)
    waiting = journal.uncompacted
    assert waiting > 0
    upkeep.step()
    assert journal.uncompacted == waiting
    now_s[0] += 10.0 * _REST
    upkeep.step()
    assert journal.uncompacted == 0


def test_ids_of_any_type_do_not_stop_an_erasure(tmp_path: Path) -> None:
    odd = [["s-1"], {"run": 1}, 7, None]
    with Broker(tmp_path) as broker, Subscriber(*broker.endpoints) as subscriber:
        with Publisher(broker.endpoints.ingest) as publisher:
            for number, value in enumerate(odd):
                publisher.publish(event(number, payload={"run_id": value}))
            publisher.publish(event(9, session_id="s-1"))
            publisher.flush()
        for value in odd:
            fields = {"user_id": "alice", "event_id": value, "session_id": value, "payload": {"run_id": value}}
            subscriber.quarantine(msgspec.json.encode(fields), "code", "why", source="pub")
        ids = frozenset({"s-1"})
        erased = subscriber.erase(Erasable(user_id="alice", event_ids=ids, session_ids=ids, run_ids=ids))
        assert (erased.seqs, erased.quarantined) == ([5], 0)
        assert len(subscriber.quarantined()) == len(odd)


def test_quarantined_bytes_belong_to_the_user_whose_key_sent_them(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal") as journal:
        for source in ("client@a@bob/table", "client@bob/x@bob", "client@bob", "client:x@bob/y", "memory:bob"):
            journal.quarantine(b"\xff" + source.encode(), "code", "why", source, NOW)
        assert journal.erase(Erasable(user_id="bob", everything=True), NOW).quarantined == 3
        assert [entry.source for entry in journal.quarantined()] == ["client@a@bob/table", "client:x@bob/y"]


def test_an_unexpected_request_error_is_isolated_and_a_disk_error_ends_the_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, name: str) -> bool:
        raise OSError(5, "I/O") if name == "disk" else TypeError(SECRET)

    logged = CapturingLogger()
    monkeypatch.setattr(broker_module, "log", logged)
    monkeypatch.setattr(Journal, "remove_consumer", fail)
    broker = Broker(tmp_path).start()
    with Subscriber(*broker.endpoints, timeout_s=1.0) as subscriber:
        with pytest.raises(ProtocolError, match="TypeError"):
            subscriber.remove_consumer("one")
        assert [call.args for call in logged.calls] == [("request.failed",)]
        assert SECRET not in str(logged.calls)
        assert subscriber.stats().counts["failed_requests"] == 1
        with pytest.raises(RelayUnavailableError):
            subscriber.remove_consumer("disk")
    with pytest.raises(OSError, match="I/O"):
        broker.stop()


@pytest.fixture
def slow_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Broker, list[wire.Erase]]]:
    """A relay that erases at once, but replies only after the timeout that applies to other requests."""
    requests: list[wire.Erase] = []

    original = answers.Answers.erase

    def erase(relays: answers.Answers, request: wire.Erase) -> wire.Erased:
        requests.append(request)
        erased = original(relays, request)
        threading.Event().wait(3 * PATIENCE_S)
        return erased

    monkeypatch.setattr(answers.Answers, "erase", erase)
    with Broker(tmp_path) as broker:
        with Publisher(broker.endpoints.ingest) as publisher:
            publisher.publish(event(1))
            publisher.flush()
        yield broker, requests


def test_an_erasure_is_requested_once_and_its_answer_awaited(slow_relay: tuple[Broker, list[wire.Erase]]) -> None:
    broker, requests = slow_relay
    with Subscriber(*broker.endpoints, timeout_s=PATIENCE_S) as subscriber:
        assert subscriber.erase(Erasable(user_id="alice", everything=True)).seqs == [1]
    assert len(requests) == 1


def test_the_async_subscriber_requests_an_erasure_once(slow_relay: tuple[Broker, list[wire.Erase]]) -> None:
    broker, requests = slow_relay

    async def erase() -> list[int]:
        async with AsyncSubscriber(*broker.endpoints, timeout_s=PATIENCE_S) as subscriber:
            return (await subscriber.erase(Erasable(user_id="alice", everything=True))).seqs

    assert asyncio.run(erase()) == [1]
    assert len(requests) == 1


def test_an_erasure_leaves_the_file_without_waiting_for_the_next_upkeep(tmp_path: Path) -> None:
    """A second compaction waits for 20 times the duration of the first, but at least one second."""
    settings = RelaySettings(broker=BrokerSettings(upkeep_interval_s=3_600))
    with Broker(tmp_path, settings) as broker:
        with Publisher(broker.endpoints.ingest) as publisher:
            for number in range(4):
                publisher.publish(secret(number))
            publisher.flush()
        with Subscriber(*broker.endpoints) as subscriber:
            for number in range(2):
                wanted = Erasable(user_id="alice", event_ids=frozenset({f"event-{number:06}"}))
                assert len(subscriber.erase(wanted).seqs) == 1
                wait_until(lambda: subscriber.stats().journal.uncompacted == 0)
