"""Test the metrics of a real daemon: they agree with `status` and `stats`, and scraping does not affect users."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from http_caller import HttpCaller, Listener

from memory_agent import MemoryClient
from memory_agent.layout import Layout
from memory_agent.records.memories import MemoryStats
from memory_agent.verbs.protocol import DaemonStatus
from relay import Publisher, Scope, create_key, relay_endpoints
from tests.polling import wait_until
from tests.scraped import samples, scraped, value

from .conftest import DaemonProcess, short_folder

TEXTS = ("Staging needs the VPN", "Releases are cut on Tuesdays", "The cache holds 64 MB")
USERS = ("ann", "ben")
UPKEEP = "daemon.upkeep_interval_s=0.2"


@pytest.fixture(scope="module")
def served() -> Iterator[DaemonProcess]:
    """A daemon that publishes no blocks, so that its metrics do not change between requests."""
    with (
        short_folder() as folder,
        DaemonProcess(Path(folder), UPKEEP, "triggers.enabled=false", light=True).running() as daemon,
    ):
        yield daemon


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def scraper(served: DaemonProcess) -> Iterator[HttpCaller]:
    key = create_key(served.data_dir, "prometheus", None, frozenset({Scope.METRICS}))
    with closing(HttpCaller(served.ready["endpoints"]["http"], key.token)) as caller:
        yield caller


def publish(daemon: DaemonProcess, *events: dict[str, object]) -> dict[str, int]:
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        for event in events:
            publisher.publish(event)
        report = publisher.flush()
    assert report.pending == 0
    return report.acked_through


def test_the_figures_agree_with_status_and_stats(served: DaemonProcess, scraper: HttpCaller, stack: ExitStack) -> None:
    said = [
        {"event_type": "chat.user_msg", "user_id": user, "payload": {"text": text}} for user in USERS for text in TEXTS
    ]
    unknown = {"event_type": "no.such.type", "user_id": "ann", "payload": {}}
    ends = {"event_type": "run.ended", "user_id": "ann", "payload": {"run_id": 7}}
    through = publish(served, *said, unknown, ends)
    with MemoryClient("ann", data_dir=served.data_dir) as client:
        client.wait(through, timeout_s=60)
        for _ in range(3):
            client.recall("what does staging need?", deadline_ms=60_000)
        client.recall("what does staging need?", deadline_ms=0)
        wait_until(lambda: client.status().journal["consumers"][0]["lag"] == 0)
    clients = [stack.enter_context(MemoryClient(user, data_dir=served.data_dir)) for user in USERS]
    url, token = served.ready["endpoints"]["http"], Layout(served.data_dir).token()
    stack.enter_context(Listener(url, token, "/v1/events?user_id=ann"))
    wait_until(lambda: reported(scraped(scraper), [client.stats() for client in clients]))
    page, status = scraped(scraper), clients[0].status()
    check_against_status(page, status)
    gates = Counter(client.sona.status().gate.state for client in clients)
    for state in ("shadow", "trial", "on", "off"):
        assert value(page, "users_by_gate", gate=state) == gates[state]


def reported(page: str, stats: list[MemoryStats]) -> bool:
    """Whether upkeep has reported the current `stats`."""
    fields = {"memories": "memories", "memories_waiting": "waiting", "store_bytes": "disk_bytes"}
    return all(value(page, name) == sum(getattr(one, field) for one in stats) for name, field in fields.items())


def check_against_status(page: str, status: DaemonStatus) -> None:
    assert value(page, "recall_seconds_count") == status.recalls["count"] == 4
    assert value(page, "recalls_degraded_total", reason="deadline") == 1
    assert value(page, "requests_total", verb="recall", outcome="answered") == 4
    for outcome in ("read", "kept", "duplicates", "dropped", "quarantined"):
        assert value(page, "events_total", outcome=outcome) == status.dispatched.get(outcome, 0)
    assert value(page, "lag_events") == status.dispatched["lag"] == 0
    assert value(page, "lag_seconds_count") == status.dispatched["read"] == 8
    assert value(page, "ingest_seconds_count") >= 2
    assert 1 <= value(page, "ack_seconds_count") <= status.dispatched["read"]
    journal = status.journal
    assert value(page, "journal_events") == journal["entries"]
    assert value(page, "journal_events_stored_total") == journal["last_seq"] == status.dispatched["read"]
    assert value(page, "journal_file_bytes") == journal["file_bytes"]
    assert value(page, "journal_consumers") == len(journal["consumers"])
    assert value(page, "quarantine_events") == journal["quarantined"]
    assert value(page, "quarantine_bytes") == journal["quarantined_bytes"]
    masked = sum(number for name, number in journal["counts"].items() if name.startswith("masked_"))
    assert value(page, "relay_counts_total", count="masked") == masked
    for name, number in journal["counts"].items():
        if not name.startswith("masked_"):
            assert value(page, "relay_counts_total", count=name) == number
    assert value(page, "users_awake") == len(status.active_users) == len(USERS)
    assert value(page, "streams") == 1
    for part in status.parts[:3]:
        assert value(page, "part_up", part=part.name) == (part.state == "running")
        assert value(page, "part_restarts_total", part=part.name) == part.restarts


def test_every_scrape_beside_load_is_answered(served: DaemonProcess, scraper: HttpCaller) -> None:
    stop = threading.Event()

    def load(user_id: str) -> None:
        with MemoryClient(user_id, data_dir=served.data_dir) as client:
            while not stop.is_set():
                client.remember("The cache holds 64 MB")
                client.recall("how much does the cache hold?", deadline_ms=60_000)

    before = scraped(scraper)
    threads = [threading.Thread(target=load, args=(user,)) for user in USERS for _ in range(4)]
    for thread in threads:
        thread.start()
    pages = [scraped(scraper) for _ in range(100)]
    wait_until(lambda: value(scraped(scraper), "recall_seconds_count") >= value(before, "recall_seconds_count") + 20)
    stop.set()
    for thread in threads:
        thread.join()
    counts = [value(page, "recall_seconds_count") for page in pages]
    assert counts == sorted(counts)
    allowed = samples(before).keys() | {
        ("memory_agent_requests_total", (("outcome", "answered"), ("verb", verb))) for verb in ("remember", "recall")
    }
    assert samples(pages[-1]).keys() <= allowed


def test_scraping_wakes_no_user_and_delays_no_sleep() -> None:
    with short_folder() as folder:
        daemon = DaemonProcess(Path(folder), UPKEEP, "daemon.idle_sleep_s=1", light=True)
        daemon.start()
        try:
            with (
                MemoryClient("ann", data_dir=daemon.data_dir) as client,
                closing(HttpCaller(daemon.ready["endpoints"]["http"], Layout(daemon.data_dir).token())) as caller,
            ):
                client.remember(TEXTS[0])
                assert value(scraped(caller), "users_awake") == 1
                wait_until(lambda: value(scraped(caller), "users_awake") == 0)
                wait_until(lambda: value(scraped(caller), "memories") == 0)
                assert client.status().active_users == ()
                assert value(scraped(caller), "hosts", state="used") == 0
        finally:
            daemon.kill()
