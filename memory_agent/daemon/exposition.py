"""The daemon's figures in Prometheus' text format.

Only this file imports `prometheus_client`, and only at the first scrape. A scrape reads counters, sends no request to a
host, and wakes no user. Label values come from lists in the code or are names of machines, so the number of time series
is bounded.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from memory_agent.daemon.host_pool import PoolFigures
from memory_agent.recall.query import REASONS
from memory_agent.records.trajectories import GateState
from memory_agent.verbs.protocol import DaemonStatus
from relay import Histogram, RelayStats

if TYPE_CHECKING:
    from prometheus_client import Metric

    from memory_agent.daemon.components import Components

PREFIX = "memory_agent_"
Values = Mapping[Any, float]

_NO_LABELS = ()
_EVENTS = ("read", "kept", "duplicates", "dropped", "quarantined")
_TRIGGERS = ("published", "silent", "late", "failed", "unpublished", "debounced", "full")
_RELAY = (
    *("accepted", "duplicates", "malformed", "foreign", "batches", "damaged", "unauthorized"),
    *("refused_gap", "refused_full", "refused_behind", "refused_without_keys", "refused_without_copy"),
    *("pub_received", "pub_accepted", "pub_duplicates", "pub_malformed", "pub_foreign", "pub_dropped"),
    *("table_waits", "table_errors", "unreadable_requests", "failed_requests", "replies_undelivered"),
)
_NODES = ("joining", "up", "leaving", "full")


@dataclass(frozen=True)
class Family:
    """One figure: a value for each tuple of label values, or a histogram. `name` excludes the prefix."""

    name: str
    help: str
    values: Values | Histogram
    labels: tuple[str, ...] = _NO_LABELS
    kind: Literal["counter", "gauge"] = "gauge"


def exposition(status: DaemonStatus, stats: RelayStats | None, components: Components) -> str:
    """Return all figures. Without `stats`, the figures of the relay and its journal are missing."""
    hosts = components.hosts.figures()
    families = [
        *_of_answers(status, components),
        *_of_ingestion(status, components),
        *([] if stats is None else _of_journal(stats)),
        *_of_users(status, hosts),
        *_of_disk(components),
        *_of_parts(status, hosts),
        *_of_nodes(status),
        *_of_models(hosts),
    ]
    return _rendered(families)


def _of_answers(status: DaemonStatus, components: Components) -> Iterator[Family]:
    service = components.service
    yield Family("recall_seconds", "Duration of recalls in the daemon.", service.recall_latency.histogram)
    degraded = _listed(service.degraded, REASONS)
    yield Family("recalls_degraded", "Degraded recalls, by reason.", degraded, ("reason",), "counter")
    judged = {("judge",): service.judged[False], ("cache",): service.judged[True]}
    yield Family("recalls_judged", "Recalls whose memories a judge selected.", judged, ("source",), "counter")
    requests = {(verb, "failed" if failed else "answered"): n for (verb, failed), n in service.requests.items()}
    yield Family("requests", "Requests received through all interfaces.", requests, ("verb", "outcome"), "counter")
    running = 0 if components.requests is None else len(components.requests)
    yield Family("requests_running", "Requests that are being answered.", _one(running))
    streams = 0 if components.http is None else components.http.streams
    yield Family("streams", "Streams of events or blocks that clients follow over HTTP.", _one(streams))
    yield Family("block_seconds", "Time from an event's arrival to the block it caused.", components.reactor.histogram)
    triggers = _listed(status.triggers, _TRIGGERS)
    yield Family("triggers", "Events with a trigger, by outcome.", triggers, ("outcome",), "counter")


def _of_ingestion(status: DaemonStatus, components: Components) -> Iterator[Family]:
    dispatcher = components.dispatcher
    yield Family("ingest_seconds", "Duration of a batch's ingestion into a memory.", dispatcher.ingestion)
    yield Family("lag_seconds", "Age of an event when it became recallable.", dispatcher.lags)
    yield Family("lag_events", "Events from the first unhandled to the last one read.", _one(status.dispatched["lag"]))
    events = _listed(status.dispatched, _EVENTS)
    yield Family("events", "Events from the journal, by outcome.", events, ("outcome",), "counter")
    queues = {"lanes": dispatcher.waiting(), "parked": dispatcher.parked, "triggers": status.triggers["waiting"]}
    yield Family("queued_events", "Events waiting in the daemon.", _listed(queues, queues), ("queue",))


def _of_journal(stats: RelayStats) -> Iterator[Family]:
    journal = stats.journal
    yield Family("ack_seconds", "Time from the receipt of published events to their acknowledgement.", stats.acks)
    masked = sum(number for name, number in stats.counts.items() if name.startswith("masked_"))
    counts = _listed({**stats.counts, "masked": masked}, (*_RELAY, "masked"))
    yield Family("relay_counts", "Counters of the relay.", counts, ("count",), "counter")
    yield Family("journal_events_stored", "Total events stored in the journal.", _one(journal.last_seq), kind="counter")
    yield Family("journal_events", "Events in the journal.", _one(journal.entries))
    yield Family("journal_file_bytes", "Size of the journal's file.", _one(journal.file_bytes))
    yield Family("journal_used_bytes", "Bytes of the journal's file that are in use.", _one(journal.used_bytes))
    yield Family("journal_consumers", "Durable consumers of the journal.", _one(len(journal.consumers)))
    behind = max((consumer.lag for consumer in journal.consumers), default=0)
    yield Family("journal_consumer_lag_events", "Lag of the consumer that is furthest behind.", _one(behind))
    yield Family("quarantine_events", "Events in quarantine.", _one(journal.quarantined))
    yield Family("quarantine_bytes", "Size of the quarantine.", _one(journal.quarantined_bytes))
    refused = _one(journal.quarantine_refused)
    yield Family("quarantine_refused", "Events refused because the quarantine was full.", refused, kind="counter")


def _of_users(status: DaemonStatus, hosts: PoolFigures) -> Iterator[Family]:
    def total(name: str) -> Values:
        return _one(sum(getattr(host, name) for host in hosts.hosts))

    yield Family("users_awake", "Users whose memory is open.", _one(len(status.active_users)))
    gates = {state: sum(host.gates.get(state, 0) for host in hosts.hosts) for state in get_args(GateState)}
    yield Family(
        "users_by_gate", "Awake users, by the state of their learner's gate.", _listed(gates, gates), ("gate",)
    )
    yield Family("memories", "Memories of awake users and shared items.", total("memories"))
    yield Family("memories_waiting", "Memories of awake users that are waiting to be embedded.", total("waiting"))
    yield Family("store_bytes", "Size of the files of awake users and shared items.", total("store_bytes"))


def _of_disk(components: Components) -> Iterator[Family]:
    try:
        disk = shutil.disk_usage(components.layout.data_dir)
    except OSError:
        return
    yield Family("disk_free_bytes", "Free space of the data folder's disk.", _one(disk.free))
    yield Family("disk_size_bytes", "Size of the data folder's disk.", _one(disk.total))


def _of_parts(status: DaemonStatus, hosts: PoolFigures) -> Iterator[Family]:
    info = {(status.version, status.form): 1.0}
    yield Family("info", "The daemon's version and form.", info, ("version", "form"))
    yield Family("uptime_seconds", "Time since the daemon started.", _one(status.uptime_s))
    up = {(part.name,): float(part.state == "running") for part in status.parts}
    yield Family("part_up", "Whether a process of the daemon is running.", up, ("part",))
    restarts = {(part.name,): part.restarts for part in status.parts}
    yield Family("part_restarts", "Restarts of one of the daemon's processes.", restarts, ("part",), "counter")
    resident = {(part.name,): part.resident_bytes for part in status.parts}
    resident["hosts",] = sum(host.resident_bytes for host in hosts.hosts)
    yield Family("part_resident_bytes", "Resident memory; 0 if counted with the daemon.", resident, ("part",))
    numbers = {"used": len(hosts.hosts), "spare": hosts.spares}
    yield Family("hosts", "Host processes.", _listed(numbers, numbers), ("state",))
    yield Family("host_restarts", "Restarts of host processes.", _one(hosts.restarts), kind="counter")
    yield Family("hosts_lost", "Hosts that were lost and not restarted.", _one(hosts.lost), kind="counter")


def _of_nodes(status: DaemonStatus) -> Iterator[Family]:
    states = ["full" if node.is_full else node.state for node in status.nodes]
    yield Family(
        "nodes", "Other machines of the cluster.", {(name,): states.count(name) for name in _NODES}, ("state",)
    )
    users = {(node.name,): node.users for node in status.nodes}
    yield Family("node_users", "Awake users on another machine.", users, ("node",))


def _of_models(hosts: PoolFigures) -> Iterator[Family]:
    def counted(part: str, name: str) -> float:
        return hosts.calls.get((part, name), 0)

    parts = ("embedder", "judge")
    calls = {(part, name): counted(part, name) for part in parts for name in ("failed", "refused")}
    calls |= {(part, "answered"): counted(part, "calls") - counted(part, "failed") for part in parts}
    yield Family("model_calls", "Calls to model servers.", calls, ("part", "outcome"), "counter")
    retries = {(part,): counted(part, "retries") for part in parts}
    yield Family("model_retries", "Repeated attempts of calls.", retries, ("part",), "counter")
    tokens = {(part, way): counted(part, f"tokens_{way}") for part in parts for way in ("read", "written")}
    yield Family("model_tokens", "Tokens that a model's server reported.", tokens, ("part", "direction"), "counter")
    cost = {(part,): counted(part, "cost_usd") for part in parts}
    yield Family("model_cost_usd", "Cost of the calls, at the prices in the settings.", cost, ("part",), "counter")


def _one(value: float) -> Values:
    return {_NO_LABELS: value}


def _listed(values: Mapping[str, float], names: Iterable[str]) -> Values:
    """Return a value for each of `names`, and only for these: 0 if nothing was counted."""
    return {(name,): values.get(name, 0) for name in names}


def _rendered(families: Iterable[Family]) -> str:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


class _Families:
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._families)


def _metric(family: Family) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    name = PREFIX + family.name
    if isinstance(family.values, Histogram):
        histogram = HistogramMetricFamily(name, family.help)
        buckets = [
            ("+Inf" if bound == math.inf else str(bound), float(count)) for bound, count in family.values.buckets()
        ]
        histogram.add_metric([], buckets, family.values.sum_s)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, family.help, labels=family.labels)
    for labels, value in family.values.items():
        metric.add_metric(labels, value)
    return metric
