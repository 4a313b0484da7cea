"""Test the bench: its texts, figures and verdicts, and that its parts match its table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.embedders import open_embedder
from memory_agent.errors import ModelMissingError
from memory_agent.evaluation import temporary_daemon
from memory_agent.settings import DaemonSettings, EmbedderSettings, Settings
from ops.bench import (
    archiving,
    cost,
    filters,
    hook,
    http,
    indexes,
    ingesting,
    light,
    mcp,
    nodes,
    providers,
    recall,
    resident,
    storage,
    triggers,
)
from ops.bench.__main__ import PARTS, results_page
from ops.bench.cluster import joined_machine
from ops.bench.cost import python_calls
from ops.bench.filled_store import filled_store
from ops.bench.grown_stores import SHARES, grown_events, grown_stores
from ops.bench.machine import describe_machine
from ops.bench.rows import (
    Row,
    all_rows,
    cost_rows,
    filters_rows,
    ingest_rows,
    ingesting_rows,
    recall_rows,
    storage_rows,
)
from ops.bench.spread import percentile, spread
from ops.bench.texts import MEAN_TOKENS, events, passages, queries
from ops.process_memory import measure_tree, process_tree, still_running
from relay import EventLimits, event_from_mapping

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
FIGURES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=50)
MEASURED_TOGETHER = (recall, triggers, http, mcp, hook)
"""Parts that each start their own daemon with the usual settings, but could also measure one without Ray."""


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """The folder of a small memory, which each part copies."""
    with filled_store(100) as folder:
        yield folder


@pytest.fixture(scope="module")
def running_daemon() -> Iterator[Path]:
    """The data folder of a running daemon without Ray."""
    with temporary_daemon(Settings(daemon=DaemonSettings(light=True))) as data_dir:
        yield data_dir


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Path, Path]]:
    """The data folder of a running daemon with Ray, and a folder for machines that join it.

    The three users of `resident`, which runs first, have a host each; all others share two hosts.
    """
    with nodes.cluster_daemon(DaemonSettings(dedicated_hosts=3, shared_hosts=2)) as folders:
        yield folders


@pytest.fixture(scope="module")
def full_daemon(cluster: tuple[Path, Path]) -> Path:
    return cluster[0]


@pytest.fixture
def one_daemon(running_daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the parts on one daemon, each with its own user."""
    for part in MEASURED_TOGETHER:
        monkeypatch.setattr(part, "temporary_daemon", lambda settings: nullcontext(running_daemon))
        monkeypatch.setattr(part, "_USER", part.__name__.rpartition(".")[2])


def own_if_light(full_daemon: Path, settings: Settings) -> AbstractContextManager[Path]:
    """Start a new daemon if the settings exclude Ray; otherwise, use `full_daemon`."""
    return temporary_daemon(settings) if settings.daemon.light else nullcontext(full_daemon)


def fewer(monkeypatch: pytest.MonkeyPatch, part: ModuleType, **numbers: int) -> None:
    """Reduce the size of a part's measurements; the tests do not check the figures."""
    for name, number in numbers.items():
        monkeypatch.setattr(part, f"_{name.upper()}", number)


def test_texts_are_the_same_for_the_same_seed_and_none_comes_twice() -> None:
    assert passages(400, seed=1) == passages(400, seed=1)
    assert passages(400, seed=1) != passages(400, seed=2)
    for texts in (passages(2_000, seed=3), queries(500, seed=3)):
        assert len(set(texts)) == len(texts)


def test_texts_are_as_long_as_they_are_said_to_be() -> None:
    try:
        embedder = open_embedder(EmbedderSettings(allow_download=False))
    except ModelMissingError as error:
        pytest.skip(str(error))
    with_tokens = [embedder.count_tokens(text) for text in passages(3_000, seed=4)]
    embedder.close()
    assert abs(statistics.mean(with_tokens) - MEAN_TOKENS) < 1.5


def test_every_event_of_the_bench_passes_the_checks_of_the_relay() -> None:
    made = events(passages(100, seed=5), "bench", "series")
    assert len({event_from_mapping(event, EventLimits(), NOW).event_id for event in made}) == 100


@given(FIGURES)
def test_a_spread_holds_its_median(values: list[float]) -> None:
    figures = spread(values, digits=6)
    assert figures["least"] <= figures["median"] <= figures["most"]


@given(FIGURES, st.floats(0, 100))
def test_a_percentile_is_one_of_the_values_and_grows_with_the_percentage(values: list[float], percent: float) -> None:
    assert percentile(values, percent) in values
    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)
    assert percentile(values, percent) <= percentile(values, 100)


@pytest.mark.parametrize(("share", "reached"), [(0.84, False), (0.85, True), (0.99, True)])
def test_ingest_reaches_its_target_at_the_target(share: float, reached: bool) -> None:
    one = {"median": share, "least": share, "most": share}
    figures = {"tokens_mean": 34, "events_per_s": one, "embedder_alone_per_s": one, "share": one, "target_share": 0.85}
    figures |= {"processor_ms": {"embedder": 3.0, "hosts": 0.25, "Ray": 0.5}}
    rows = list(ingest_rows(figures))
    assert [row.reached for row in rows] == [None, reached, None]
    assert (rows[2].measured, rows[2].baseline) == ("3.75 ms", "Ray 0.5, embedder 3, hosts 0.25: 0.80 for embedding")


def same(value: float) -> dict[str, float]:
    """Return a spread of equal values."""
    return {"median": value, "least": value, "most": value}


@pytest.mark.parametrize("more", [0.0, 0.01])
def test_recall_reaches_its_targets_at_the_targets(more: float) -> None:
    figures = {
        "memories": 10_000,
        "embedding_ms": same(1.0),
        "rpc_p50_ms": same(1.0),
        "in_process_p50_ms": same(1.0),
        "vectors_p50_ms": same(1.0),
        "rpc_p99_ms": 1.0,
        "in_process_p99_ms": 1.0,
        "p50_ratio": same(recall.TARGET_P50_RATIO + more),
        "target_p50_ratio": recall.TARGET_P50_RATIO,
        "rpc_less_in_embeddings": same(recall.TARGET_RPC_LESS + more),
        "target_rpc_less": recall.TARGET_RPC_LESS,
        "rpc_processor_ms": same(1.0),
        "idle_share_of_a_core": same(0.01),
        "rpc_processor_in_embeddings": same(recall.TARGET_PROCESSOR + more),
        "target_processor": recall.TARGET_PROCESSOR,
        "p50_over_vectors": same(recall.TARGET_OVER_VECTORS + more),
        "target_over_vectors": recall.TARGET_OVER_VECTORS,
        "p99_over_p50": recall.TARGET_P99_RATIO + more,
        "target_p99_over_p50": recall.TARGET_P99_RATIO,
    }
    assert [row.reached for row in recall_rows(figures)] == [None] + [not more] * 5


def test_python_functions_are_counted_but_not_those_of_c() -> None:
    def one() -> int:
        return len([])

    assert python_calls(one) == 1
    assert python_calls(lambda: [one() for _ in range(3)]) in (4, 5)  # before Python 3.12 a comprehension is a function
    assert sys.getprofile() is None


def test_events_of_a_growing_memory_go_on_where_they_ended_and_carry_their_tags() -> None:
    made = list(grown_events(0, 4_000))
    assert list(grown_events(1_000, 2_000)) == made[1_000:2_000]
    for share in SHARES:
        tagged = [event for event in made if f"share {share:g}" in event["payload"]["tags"]]
        assert len(tagged) / len(made) == pytest.approx(share, rel=0.25)
    qualities = [event["payload"]["quality"] for event in made]
    assert statistics.mean(qualities) == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_measuring_a_growing_memory_makes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, cost, turns=2, questions=5, warm_up=2, counted=2)
    fewer(monkeypatch, ingesting, turns=1, turns_with_model=1, questions=5, warm_up=2, events=500)
    fewer(
        monkeypatch, sys.modules["ops.bench.grown_stores"], basis=100
    )  # embedded passages; all others are mixtures of these
    fewer(monkeypatch, filters, queries=2, warm_up=2)
    with grown_stores((200, 400)) as growth:
        assert sum(batch.count for batch in growth.batches) == 440
        parts = {part.__name__.rpartition(".")[2]: part.measure(growth) for part in (cost, ingesting, storage, filters)}
    rows = {row.figure: row for row in all_rows(parts)}
    assert rows["recall in process, 200 memories, relative to embedding"].target == ""
    assert rows["filters, 400 memories, vector recall@10"].reached
    assert [max(one["matching"] for one in figures["filters"]) for figures in parts["filters"].values()] == [200, 400]
    assert parts["storage"]["sizes"]["400"]["disk_mb"] > 0
    assert parts["ingesting"]["known"]["memories_per_s"]["median"] > 0


@pytest.mark.parametrize("more", [0.0, 0.01])
def test_a_growing_memory_reaches_its_targets_at_the_targets(more: float) -> None:
    of_cost = {
        "embedding_ms": same(1.0),
        "embedding_in_a_row_ms": same(1.0),
        "recall_ms": same(1.0),
        "recall_p99_ms": 1.0,
        "in_embeddings": same(cost.TARGETS[10_000] + more),
        "in_embeddings_by_processor": same(1.0),
        "target": cost.TARGETS[10_000],
        "calls": cost.TARGET_CALLS + round(more * 100),
        "target_calls": cost.TARGET_CALLS,
        "statements": round(more * 100),
    }
    assert [row.reached for row in cost_rows({"10000": of_cost})] == [None] + [not more] * 3
    load = {
        "idle_ms": same(1.0),
        "idle_p99_ms": 1.0,
        "loaded_ms": same(1.0),
        "loaded_p99_ms": 1.0,
        "p50_ratio": same(ingesting.TARGET_P50 + more),
        "p99_ratio": same(9.0),
        "memories_per_s": same(250.0),
    }
    figures = {"memories": 100_000, "target_p50": ingesting.TARGET_P50, "known": load, "embedded": load}
    assert [row.reached for row in ingesting_rows(figures)] == [None, not more, None, None]
    sizes = {
        str(size): {
            "processor_ms_a_memory": 1.0,
            "wall_ms_a_memory": 1.0,
            "resident_mb": targets["resident_mb"] + more,
            "anonymous_mb": 1.0,
            "disk_mb": targets["disk_mb"] + more,
            "open_ms": 1.0,
            "targets": targets,
        }
        for size, targets in storage.TARGETS.items()
    }
    figures = {
        "sizes": sizes,
        "growth": storage.TARGET_GROWTH + more,
        "target_growth": storage.TARGET_GROWTH,
        "worst": {"ratio": storage.TARGET_WORST + more, "most_ms": 1.0},
        "worst_by_processor": {"ratio": 1.0},
        "target_worst": storage.TARGET_WORST,
    }
    assert [row.reached for row in storage_rows(figures)] == [None, not more, not more] * 2 + [not more] * 2
    one = {"over_none": {"median": 1.0, "most": 1.0}, "recall": 1.0 - more, "target_recall": filters.TARGET_RECALL}
    assert [row.reached for row in filters_rows({"10000": one})] == [None, not more]


def test_the_results_name_time_machine_and_missed_targets() -> None:
    rows = [Row("speed", "1 (1-1)", "2", "≥ 3", False), Row("size", "4 MB")]
    page = results_page(rows, describe_machine(), NOW)
    assert "2026-11-21" in page
    assert "onnxruntime" in page
    assert "| speed | 1 (1-1) | 2 | ≥ 3 | NO |" in page
    assert "| size | 4 MB |  |  |  |" in page


def test_the_memory_of_a_process_and_of_its_children_is_measured() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        names = {os.getpid(): "tests", child.pid: "child"}
        measured = {process.role: process for process in measure_tree(os.getpid(), names)}
        tree = process_tree(os.getpid())
        assert child.pid in {process.pid for process in still_running(tree)}
        child.communicate(b"\n")
    for role in ("tests", "child"):
        assert 0 < measured[role].pss_bytes <= measured[role].rss_bytes
    assert child.pid not in {process.pid for process in still_running(tree)}


@pytest.mark.slow
def test_measuring_recall_makes_rows(store: Path, one_daemon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, recall, turns=2, questions=10, warm_up=5)
    rows = {row.figure: row for row in all_rows({"recall": recall.measure(store)})}
    assert "recall through RPC, 100 memories, p50" in rows


@pytest.mark.slow
def test_measuring_a_servers_model_makes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_TURNS", 1)
    monkeypatch.setattr(providers, "_TEXTS", 64)
    rows = all_rows({"providers": providers.measure()})
    assert [row.figure.partition(", ")[2] for row in rows] == [
        "768 dimensions, batches of 32",
        "1536 dimensions, batches of 2,048",
    ]


def test_measuring_an_archive_makes_rows(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, archiving, turns=1, batches=2)
    rows = {row.figure: row for row in all_rows({"archiving": archiving.measure(store)})}
    assert rows["archive, 100 memories, restored with 2 increments"].target == "≤ 1000 ms"
    assert "archive, 100 memories, batch of 25, with archiving, relative to one without it" in rows


@pytest.mark.slow
@pytest.mark.ray
def test_measuring_the_memory_of_each_process_makes_rows(
    store: Path, full_daemon: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer(monkeypatch, resident, recalls=10)
    monkeypatch.setattr(resident, "temporary_daemon", lambda settings: nullcontext(full_daemon))
    measured = resident.measure(store)
    rows = {row.figure: row for row in all_rows({"resident": measured})}
    assert rows["resident, daemon with one user, Ray included"].target == "≤ 700 MB"
    assert measured["processes"]["user-one"]["pss_mb"] > 0
    assert measured["daemon_pss_mb"] < measured["daemon_rss_mb"]


@pytest.mark.slow
@pytest.mark.ray
def test_measuring_both_forms_makes_rows(store: Path, full_daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, light, recalls=5)
    monkeypatch.setattr(light, "temporary_daemon", partial(own_if_light, full_daemon))
    monkeypatch.setattr(light, "_USER", "light")
    monkeypatch.setattr(light, "_IDLE_S", 0.1)
    monkeypatch.setattr(light, "_STARTS", {True: 1, False: 1})
    figures = light.measure(store)
    rows = {row.figure: row for row in all_rows({"light": figures})}
    assert rows["light: resident, one user with 100 memories"].target == "≤ 200 MB"
    assert rows["light: time from start to ready"].target == "≤ 1.5 s"
    assert figures["light"]["processes"] == 1
    assert figures["light"]["pss_mb"] < figures["full"]["pss_mb"] / 2


@pytest.mark.slow
@pytest.mark.ray
def test_measuring_machines_makes_rows(
    running_daemon: Path, cluster: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine joins when it is first needed, and hosts the last user."""
    fewer(monkeypatch, nodes, awake_memories=20, awake_recalls=8, users=4, stored=5, events=5, recalls=2, turns=1)

    def daemon_of(settings: Settings) -> AbstractContextManager[Path]:
        is_alone = settings.daemon.light or settings.daemon == nodes.ONE_HOST
        return nullcontext(running_daemon if is_alone else cluster[0])

    with ExitStack() as stack:
        node = cache(lambda: stack.enter_context(joined_machine(*cluster)))
        monkeypatch.setattr(nodes, "temporary_daemon", daemon_of)
        monkeypatch.setattr(nodes, "cluster_daemon", lambda: nullcontext(cluster))
        monkeypatch.setattr(nodes, "joined_machine", lambda *_, **_options: nullcontext(node()))
        rows = {row.figure: row for row in all_rows({"nodes": nodes.measure(users=3)})}
    assert "with one user" in rows["nodes: 3 users awake, light form, resident"].baseline
    assert "nodes: 3 users awake, full form, recall" in rows
    assert "nodes: a machine that joined, resident" in rows
    if len(os.sched_getaffinity(0)) > 1:
        assert "joined host" in rows["nodes: processor time of a recall with two machines"].baseline


@pytest.mark.slow
@pytest.mark.ray
def test_measuring_blocks_makes_rows(store: Path, one_daemon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, triggers, turns=1, messages=6, warm_up=2)
    rows = {row.figure: row for row in all_rows({"triggers": triggers.measure(store)})}
    assert set(rows) == {"triggered block after the ack, idle", "triggered block after the ack, at 250 events/s"}
    assert "of 3 arrived" in rows["triggered block after the ack, idle"].baseline


@pytest.mark.slow
def test_measuring_both_doors_makes_rows(store: Path, one_daemon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, http, turns=1, questions=4, owners=4, warm_up=2)
    rows = {row.figure: row for row in all_rows({"http": http.measure(store)})}
    assert set(rows) == {"recall over HTTP", "verb owner over HTTP", "recalls over HTTP, 4 callers"}
    assert all("over ZeroMQ" in row.baseline for row in rows.values())


@pytest.mark.slow
def test_measuring_mcp_makes_rows(store: Path, one_daemon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, mcp, starts=2, turns=1, questions=4, warm_up=2)
    rows = {row.figure: row for row in all_rows({"mcp": mcp.measure(store)})}
    assert set(rows) == {"mcp, from start to first response", "mcp, resident", "recall through mcp"}
    assert "over ZeroMQ" in rows["recall through mcp"].baseline


@pytest.mark.slow
def test_measuring_hooks_makes_rows(store: Path, one_daemon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch, hook, turns=1, prompts=4, warm_up=2)
    rows = {row.figure: row for row in all_rows({"hook": hook.measure(store)})}
    assert set(rows) == {
        "hook, from prompt to context",
        "hook, processor time",
        "hook, from prompt to exit",
    }
    assert rows["hook, from prompt to exit"].baseline.endswith("of 4 prompts")


_FEW_HOSTS = """
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from ops.bench import hosts

store, *daemons = map(Path, sys.argv[1:])
assert hosts._settings(2).daemon.shared_hosts == 2
hosts._settings = lambda count: count
hosts.temporary_daemon = lambda count: nullcontext(daemons[count - 1])
hosts._CALLS, hosts._CALL_TURNS, hosts._QUESTIONS, hosts._TURNS, hosts._WARM_UP = 20, 1, 5, 1, 5
hosts._RECALLS, hosts._LOAD_TURNS, hosts._EVENTS = 3, 1, 5
print(json.dumps(hosts.measure(store)))
"""


def _in_a_process_of_its_own(program: str, *arguments: Path) -> str:
    """Run a program in a new process, because Ray can start only once in each; return the last line that it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.ray
def test_measuring_hosts_makes_rows(store: Path, running_daemon: Path, full_daemon: Path) -> None:
    """Measures only a few calls, recalls and events. `running_daemon` has one host, `full_daemon` has two. Checks only
    that figures exist.
    """
    figures = json.loads(_in_a_process_of_its_own(_FEW_HOSTS, store, running_daemon, full_daemon))
    rows = {row.figure: row for row in all_rows({"hosts": figures})}
    assert {"hosts, empty call over a socket", "ingest of 4 users, 1 hosts", "ingest of 4 users, 2 hosts"} <= set(rows)
    assert rows["recall through RPC minus recall in process, in multiples of one embedding"].target == "≤ 1.2"
    assert all(
        name in rows["recall through RPC, processor time in multiples of one embedding"].baseline
        for name in ("client", "hosts")
    )
    assert rows["hosts, recalls with two hosts versus one"].reached is not None


def test_indexes_are_compared_in_rows_and_on_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "PACKAGES", {name: indexes.PACKAGES[name] for name in ("builtin", "sqlite-vec")})
    figures = indexes.measure((100,))
    rows = {row.figure: row for row in all_rows({"indexes": figures})}
    assert rows["index sqlite-vec, 100 memories, recall@10"].reached
    assert "ms built in" in rows["index sqlite-vec, 100 memories, search"].baseline
    page = indexes.page(figures, NOW)
    assert "| 100 | sqlite-vec, exact |" in page
    assert all(f"- **{name}**: " in page for name in ("builtin", "sqlite-vec", "pgvector", "lancedb"))


@pytest.mark.slow
def test_one_part_can_be_measured_alone_as_json() -> None:
    """Runs in a separate process, with a tenth of the events."""
    assert "journal" in PARTS
    program = (
        "import runpy, ops.bench.journal as journal\n"
        "journal.WINDOWS = {window: count // 10 for window, count in journal.WINDOWS.items()}\n"
        "runpy.run_module('ops.bench', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, "--only", "journal", "--json"]
    results = ROOT / "ops" / "bench" / "results.md"
    before = results.read_bytes()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    document = json.loads(done.stdout)
    assert set(document["parts"]) == {"journal"}
    assert document["machine"]["cores"] == str(os.cpu_count())
    assert results.read_bytes() == before
    assert len(all_rows(document["parts"])) == 3
