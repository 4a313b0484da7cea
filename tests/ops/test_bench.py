"""The bench: its texts, figures and verdicts, and that parts and table match."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.embedders import open_embedder
from memory_agent.errors import ModelMissingError
from memory_agent.settings import EmbedderSettings
from ops.bench import filters, hosts, recall, resident
from ops.bench.__main__ import PARTS, results_page
from ops.bench.filled_store import filled_store
from ops.bench.machine import describe_machine
from ops.bench.rows import Row, all_rows, filters_rows, ingest_rows, recall_rows
from ops.bench.spread import percentile, spread
from ops.bench.texts import MEAN_TOKENS, events, passages, queries
from ops.process_memory import measure_tree, process_tree, still_running
from relay import EventLimits, event_from_mapping

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
FIGURES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=50)


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
    assert [row.reached for row in ingest_rows(figures)] == [None, reached]


@pytest.mark.parametrize(
    ("ratio", "over", "tail", "reached"),
    [(2.5, 1.5, 5.0, [True, True, True]), (2.51, 1.51, 5.1, [False, False, False])],
)
def test_recall_reaches_its_targets_at_the_targets(ratio: float, over: float, tail: float, reached: list[bool]) -> None:
    one = {"median": ratio, "least": ratio, "most": ratio}
    figures = {
        "memories": 10_000,
        "rpc_p50_ms": one,
        "in_process_p50_ms": one,
        "p50_ratio": one,
        "target_p50_ratio": recall.TARGET_P50_RATIO,
        "vectors_p50_ms": one,
        "p50_over_vectors": {"median": over, "least": over, "most": over},
        "target_over_vectors": recall.TARGET_OVER_VECTORS,
        "p99_over_p50": tail,
        "target_p99_over_p50": recall.TARGET_P99_RATIO,
        "rpc_p99_ms": 1.0,
        "in_process_p99_ms": 1.0,
    }
    assert [row.reached for row in recall_rows(figures)] == [None, *reached]


def test_filters_of_every_share_are_measured_by_every_way_and_miss_nothing() -> None:
    figures = filters.measure((100, 1_000))
    rows = list(filters_rows(figures))
    assert [row.reached for row in rows] == [None, None, True] * 2
    for size, one in figures.items():
        kept = [figure["matching"] for figure in one["filters"]]
        assert max(kept) == int(size)
        assert min(kept) <= 10
        assert all(figure[f"{way}_ms"] > 0 for figure in one["filters"] for way in ("filter_first", "search_first"))
    figures["100"]["recall"] = 0.999
    assert [row.reached for row in filters_rows(figures)][2] is False


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
@pytest.mark.ray
def test_measuring_a_filled_store_makes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tenth of the questions; checks that it measures, not the figures."""
    monkeypatch.setattr(recall, "_QUESTIONS", 10)
    monkeypatch.setattr(recall, "_WARM_UP", 10)
    monkeypatch.setattr(resident, "_RECALLS", 10)
    with filled_store(250) as store:
        parts = {"recall": recall.measure(store), "resident": resident.measure(store)}
    rows = {row.figure: row for row in all_rows(parts)}
    assert rows["resident, daemon with one user, Ray included"].target == "≤ 700 MB"
    assert "recall through RPC, 250 memories, p50" in rows
    assert parts["resident"]["processes"]["user-one"]["pss_mb"] > 0
    assert parts["resident"]["daemon_pss_mb"] < parts["resident"]["daemon_rss_mb"]


@pytest.mark.slow
@pytest.mark.ray
def test_measuring_hosts_makes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few calls, recalls and events; checks that it measures, not the figures."""
    small = {"_CALLS": 20, "_CALL_TURNS": 1, "_QUESTIONS": 5, "_TURNS": 1, "_RECALLS": 3, "_LOAD_TURNS": 1}
    for name, value in (small | {"_EVENTS": 5, "_WARM_UP": 5}).items():
        monkeypatch.setattr(hosts, name, value)
    with filled_store(250) as store:
        rows = {row.figure: row for row in all_rows({"hosts": hosts.measure(store)})}
    assert {"hosts, empty call at the socket", "ingest of 4 users, 1 hosts", "ingest of 4 users, 2 hosts"} <= set(rows)
    assert rows["recall through RPC less in process, in embeddings"].target == "≤ 1.2"
    assert all(
        name in rows["recall through RPC, processor time in embeddings"].baseline for name in ("client", "hosts")
    )
    assert rows["hosts, recalls with two over one"].reached is not None


@pytest.mark.slow
def test_one_part_can_be_measured_alone_as_json() -> None:
    """In a process of its own, with a tenth of the events."""
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
