"""Test the daemon's figures: who may read them, which names they contain, and that new users add no figures."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from http_caller import Answer, HttpCaller, Listener
from served_gateway import Served, gateway_in_new_folder

from memory_agent import MemoryClient
from memory_agent.daemon import exposition
from memory_agent.daemon.host_pool import HostPool
from memory_agent.daemon.supervisor import Supervisor
from memory_agent.doors.bodies import PUBLIC
from memory_agent.errors import ScopeMissingError, UserNotAllowedError
from memory_agent.records.memories import ApiCounts
from memory_agent.verbs.protocol import HostFigures, encode_fault, encode_result, is_fault
from relay import (
    ALL_SCOPES,
    Identity,
    Publisher,
    RelayError,
    Scope,
    Subscriber,
    create_key,
)
from tests.polling import wait_until
from tests.scraped import samples, scraped, value

SCRAPER = frozenset({Scope.METRICS})
EVERYTHING_ELSE = ALL_SCOPES - SCRAPER
ODD = ("", 'a"b\\c', "memory_agent_x", '{le="1"}', "é中", "x" * 80)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with gateway_in_new_folder() as served:
        yield served


@pytest.fixture
def caller(served: Served) -> Iterator[HttpCaller]:
    with closing(HttpCaller(served.http, served.token)) as caller:
        yield caller


def get(served: Served, token: str) -> Answer:
    """Scrape with a key."""
    with closing(HttpCaller(served.http, token)) as caller:
        return caller.send("GET", "/metrics")


def test_only_a_key_for_all_users_with_the_scope_may_scrape(served: Served) -> None:
    assert get(served, create_key(served.data_dir, "prometheus", None, SCRAPER).token).status == 200
    for name, user_id, scopes, code in (
        ("others", None, EVERYTHING_ELSE, "scope_missing"),
        ("of-one", "alice", SCRAPER, "user_not_allowed"),
    ):
        answer = get(served, create_key(served.data_dir, name, user_id, scopes).token)
        assert (answer.status, answer.code) == (403, code)
    for token in ("", "wrong"):
        answer = get(served, token)
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_the_page_is_refused_to_other_hosts_and_methods(served: Served, caller: HttpCaller) -> None:
    assert caller.send("GET", "/metrics", Host="evil.example").status == 421
    assert caller.send("GET", "/metrics", Origin="http://evil.example").status == 403
    assert caller.send("POST", "/metrics", b"{}").status == 405


def test_a_key_of_a_scraper_reads_and_writes_nothing_else(served: Served) -> None:
    token = create_key(served.data_dir, "only-figures", None, SCRAPER).token
    with closing(HttpCaller(served.http, token)) as caller:
        for verb in PUBLIC:
            answer = caller.post(verb.name, {"through": {"alice": 1}, "timeout_s": 1} if verb.name == "wait" else {})
            codes = {"invalid_input", "scope_missing"} if verb.name != "metrics" else {""}
            assert answer.code in codes, verb.name
    for path in ("/v1/events?user_id=*", "/v1/events?user_id=alice", "/v1/blocks?user_id=alice"):
        stream = Listener(served.http, token, path)
        assert (stream.status, stream.problem["code"]) == (403, "scope_missing")
    with MemoryClient("alice", data_dir=served.data_dir, endpoint=served.gateway, token=token) as client:
        assert value(client.metrics(), "requests_running") == 1
        with pytest.raises(ScopeMissingError):
            client.recall("anything")
    with Subscriber(*served.relay, identity=Identity(token)) as reader:
        for request in (lambda: reader.stats(), lambda: reader.fetch(0, 1), lambda: reader.quarantined(0, 1)):
            with pytest.raises((RelayError, UserNotAllowedError), match="scope"):
                request()


def test_the_series_do_not_depend_on_users_and_types_of_events(served: Served, caller: HttpCaller) -> None:
    def recall(user_id: str) -> None:
        assert caller.post("recall", {"user_id": user_id, "query": "what does staging need?"}).status == 200

    with Publisher(served.relay.ingest, identity=Identity(served.token)) as publisher:
        publisher.publish({"event_type": "chat.user_msg", "user_id": "first", "payload": {"text": "Staging"}})
        assert publisher.flush().pending == 0
    recall("first")
    caller.post("no-such-verb")
    wait_until(lambda: value(scraped(caller), "events_total", outcome="kept") >= 1)
    before = scraped(caller)
    for number in range(200):
        recall(f"secret-user-{number}")
    with Publisher(served.relay.ingest, identity=Identity(served.token)) as publisher:
        for number in range(20):
            for place, odd in enumerate(ODD):
                payload = {"text": f"secret-text {odd}", "run_id": odd}
                type_ = f"secret-type.{place}.{odd}"
                publisher.publish({"event_type": type_, "user_id": f"secret-{number}", "payload": payload})
        report = publisher.flush()
    assert report.pending == 0
    read = value(before, "events_total", outcome="read") + report.acked
    wait_until(lambda: value(scraped(caller), "events_total", outcome="read") >= read)
    wait_until(lambda: value(scraped(caller), "lag_events") == 0)
    after = scraped(caller)
    assert samples(after).keys() == samples(before).keys()
    assert value(after, "recall_seconds_count") == value(before, "recall_seconds_count") + 200
    assert "secret" not in after
    assert "first" not in after.replace("first unhandled", "")


def test_the_library_is_imported_at_the_first_scrape_only() -> None:
    top = ast.parse(inspect.getsource(exposition)).body
    modules = [node.module for node in top if isinstance(node, ast.ImportFrom)]
    assert modules
    assert not [module for module in modules if module and module.startswith("prometheus_client")]


@pytest.mark.parametrize("result", [None, 0, "", [], {"fault": 1}, b"\x81\xa5fault"])
def test_a_fault_is_recognised_by_its_first_bytes(result: object) -> None:
    assert not is_fault(encode_result(result))
    assert is_fault(encode_fault(ScopeMissingError("recall", "key")))


class Reporting:
    """A host whose upkeep returns the given figures, one after another."""

    node, restarts, is_gone = "", 0, False

    def __init__(self, name: str, reports: list[HostFigures]) -> None:
        self.name = name
        self.figures = HostFigures()
        self._reports = reports

    async def keep_up(self, timeout_s: float, *, fill_vectors: bool) -> HostFigures:
        return self._reports.pop(0)


def test_calls_to_models_are_counted_across_restarts_and_once_for_a_machine() -> None:
    def report(judge: int, embedder: int) -> HostFigures:
        return HostFigures(
            judge=ApiCounts(provider="p", calls=judge, failed=1), embedder=ApiCounts(provider="p", calls=embedder)
        )

    hosts = {
        "a": Reporting("a", [report(3, 10), report(5, 12), report(1, 2)]),  # both processes were restarted
        "b": Reporting("b", [report(2, 11), report(2, 12), report(2, 2)]),
    }

    class Started:
        def start_host(self, **_: Any) -> Reporting:
            return hosts[("a", "b")[len(pool)]]

    pool = HostPool(cast(Supervisor, Started()), 0, None, lambda _: None, lambda _: None)
    for name in hosts:
        pool.use(name)
    counted = []
    for _ in range(3):
        asyncio.run(pool.keep_up(1.0, fill_vectors=False))
        figures = pool.figures()
        counted.append((figures.calls["judge", "calls"], figures.calls["embedder", "calls"]))
    assert counted == [(5, 11), (7, 12), (8, 14)]
    assert pool.figures().calls["judge", "failed"] == 3
    assert len(pool.figures().hosts) == 2
