"""Converts the bench's figures to rows of one table: figure, baseline, target, reached or not. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One figure. `reached` is None if the design has no target for it."""

    figure: str
    measured: str
    baseline: str = ""
    target: str = ""
    reached: bool | None = None


def all_rows(parts: Figures) -> list[Row]:
    """Return the rows of all measured parts, in table order."""
    readers = {
        "embedding": embedding_rows,
        "journal": journal_rows,
        "ingest": ingest_rows,
        "recall": recall_rows,
        "load": load_rows,
        "hosts": hosts_rows,
        "resident": resident_rows,
        "storage": storage_rows,
        "filters": filters_rows,
        "learning": learning_rows,
    }
    return [row for name, read in readers.items() if name in parts for row in read(parts[name])]


def embedding_rows(figures: Figures) -> Iterator[Row]:
    """Yield throughput and query time of each variant, then the ratios."""
    for name, kind in figures["kinds"].items():
        yield Row(
            f"embedding, {name}", f"{_spread(kind['texts_per_s'])} texts/s", f"query {_spread(kind['query_ms'])} ms"
        )
    for name, ratio in figures["ratios"].items():
        yield Row(
            f"embedding, {name}",
            f"{ratio['by_throughput']} times",
            f"{ratio['by_processor_time']} by processor time",
            f"≥ {ratio['target']:g} times",
            ratio["by_throughput"] >= ratio["target"],
        )


def journal_rows(figures: Figures) -> Iterator[Row]:
    """Yield events/s and ack latency of each window, beside a bare commit in process."""
    bare = figures["commit"]
    for name, window in figures.items():
        if name != "commit":
            yield Row(
                f"journal, {name.replace('_', ' ')}",
                f"{window['events_per_s']} events/s, ack p50 {window['ack_p50_ms']}, p99 {window['ack_p99_ms']} ms",
                f"one bare commit {bare['ack_p50_ms']} ms",
            )


def ingest_rows(figures: Figures) -> Iterator[Row]:
    """Yield events/s from publish to recallable, beside the embedder alone."""
    share, target = figures["share"]["median"], figures["target_share"]
    yield Row(
        f"ingest, publish to recallable, {figures['tokens_mean']:g} tokens",
        f"{_spread(figures['events_per_s'])} events/s",
        f"embedder alone {_spread(figures['embedder_alone_per_s'])}",
    )
    yield Row(
        "ingest, share of the embedder's rate",
        _spread(figures["share"]),
        "1.0",
        f"≥ {target:g}",
        share >= target,
    )


def recall_rows(figures: Figures) -> Iterator[Row]:
    """Yield recall latency through RPC beside in process."""
    ratio, tail = figures["p50_ratio"]["median"], figures["p99_over_p50"]
    yield Row(
        f"recall through RPC, {figures['memories']:,} memories, p50",
        f"{_spread(figures['rpc_p50_ms'])} ms",
        f"in process {_spread(figures['in_process_p50_ms'])} ms",
    )
    yield Row(
        "recall through RPC over in process, p50",
        f"{_spread(figures['p50_ratio'])} times",
        "1.0",
        f"≤ {figures['target_p50_ratio']:g} times",
        ratio <= figures["target_p50_ratio"],
    )
    over = figures["p50_over_vectors"]
    yield Row(
        "recall through RPC over vectors alone through RPC, p50",
        f"{_spread(over)} times",
        f"vectors alone {_spread(figures['vectors_p50_ms'])} ms",
        f"≤ {figures['target_over_vectors']:g} times",
        over["median"] <= figures["target_over_vectors"],
    )
    yield Row(
        "recall through RPC, p99 over p50",
        f"{tail:g} times ({figures['rpc_p99_ms']} ms)",
        f"in process p99 {figures['in_process_p99_ms']} ms",
        f"≤ {figures['target_p99_over_p50']:g} times",
        tail <= figures["target_p99_over_p50"],
    )


def load_rows(figures: Figures) -> Iterator[Row]:
    """Yield query latency during bulk work, in the lanes and through RPC, and its delay."""
    target, longest = figures["target_embeddings"], f"longest text {figures['longest_ms']:g} ms"
    for way, kinds in (("in the lanes", figures["lanes"]), ("recall through RPC", figures["rpc"])):
        for name, one in kinds.items():
            rate, alone = one.get("bulk_per_s"), one.get("bulk_alone_per_s")
            beside = "" if rate is None else f"{_spread(rate)} a second in bulk"
            beside += "" if alone is None else f", without queries {_spread(alone)}"
            yield Row(f"load, {way}, {name}", f"{_spread(one['p50_ms'])} ms, p99 {one['p99_ms']} ms", beside)
            if name != "idle":
                late = one["delay_in_embeddings"]
                yield Row(f"load, {way}, {name}, delay", f"{late['p50']:g} embeddings, p99 {late['p99']:g}", longest,
                          f"≤ {target:g}", max(late.values()) <= target)  # fmt: skip


def hosts_rows(figures: Figures) -> Iterator[Row]:
    """Yield what a call to a host and a recall through RPC cost, and recalls and ingest by the number of hosts."""
    calls, alone, load, ingest = (figures[name] for name in ("calls", "alone", "load", "ingest"))
    yield Row("hosts, empty call at the socket", f"{_spread(calls['socket_ms'])} ms", f"Ray {_spread(calls['ray_ms'])}")
    over, limit = alone["over_in_process_embeddings"], alone["target_rpc_embeddings"]
    yield Row("recall through RPC less in process, in embeddings", _spread(over),
              f"{_spread(alone['rpc_ms'])} less {_spread(alone['in_process_ms'])} ms; one embedding "
              f"{_spread(alone['embedding_ms'])}", f"≤ {limit:g}", over["median"] <= limit)  # fmt: skip
    whole, most = alone["processor_embeddings"], alone["target_all_embeddings"]
    parts = ", ".join(f"{name} {spent:g}" for name, spent in alone["processor_ms"].items())
    yield Row("recall through RPC, processor time in embeddings", _spread(whole), f"{parts} ms",
              f"≤ {most:g}", whole["median"] <= most)  # fmt: skip
    for hosts, one in load["by_hosts"].items():
        yield Row(f"recall, {load['clients']} clients, {hosts} hosts", f"{_spread(one['recalls_per_s'])} a second",
                  f"p50 {one['p50_ms']:g}, p99 {one['p99_ms']:g} ms", f"p99 ≤ {load['target_p99_over_p50']:g} p50",
                  one["p99_over_p50"] <= load["target_p99_over_p50"])  # fmt: skip
    for hosts, one in ingest["by_hosts"].items():
        yield Row(f"ingest of 4 users, {hosts} hosts", f"{_spread(one['events_per_s'])} events/s")
    growth = figures["target_growth"]
    for name, part in (("recalls", load), ("ingest", ingest)):
        yield Row(f"hosts, {name} with two over one", f"{_spread(part['growth'])} times", "1.0", f"≥ {growth:g} times",
                  part["growth"]["median"] >= growth)  # fmt: skip


def resident_rows(figures: Figures) -> Iterator[Row]:
    """Yield memory of each process, of all, and of a filled store."""
    for name, process in figures["processes"].items():
        yield Row(f"resident, {name}", f"{process['pss_mb']:g} MB", f"RSS {process['rss_mb']:g} MB")
    daemon, target = figures["daemon_pss_mb"], figures["target_daemon_mb"]
    yield Row("resident, daemon with one user, Ray included", f"{daemon:g} MB", f"RSS {figures['daemon_rss_mb']:g} MB",
              f"≤ {target} MB", daemon <= target)  # fmt: skip
    grown, limit = figures["filled_pss_mb"], figures["target_filled_mb"]
    yield Row("resident, filled store over an empty actor", f"{grown:g} MB", f"RSS {figures['filled_rss_mb']:g} MB",
              f"≤ {limit} MB", grown <= limit)  # fmt: skip
    disk, room = figures["disk_mb"], figures["target_disk_mb"]
    yield Row("disk, filled store", f"{disk:g} MB", "", f"≤ {room} MB", disk <= room)


def storage_rows(figures: Figures) -> Iterator[Row]:
    """Yield the figures of the store alone, on synthetic vectors."""
    for size, one in figures.items():
        what, targets = f"store alone, {int(size):,} memories", one["targets"]
        yield Row(f"{what}, stored", f"{one['stored_per_s']} a second", "without embedding")
        yield Row(f"{what}, vector search p50", f"{one['vector_ms']['p50']} ms", f"p99 {one['vector_ms']['p99']} ms")
        yield Row(f"{what}, word search p50", f"{one['words_ms']['p50']} ms", f"p99 {one['words_ms']['p99']} ms")
        for name, unit in (("resident_mb", "MB"), ("disk_mb", "MB")):
            if name in targets:
                yield Row(f"{what}, {name.partition('_')[0]}", f"{one[name]:g} {unit}", "",
                          f"≤ {targets[name]} {unit}", one[name] <= targets[name])  # fmt: skip
        if "recall" in targets:
            yield Row(f"{what}, vector recall@10", f"{one['recall_at_10']:g}", "exact search",
                      f"≥ {targets['recall']:g}", one["recall_at_10"] >= targets["recall"])  # fmt: skip


def filters_rows(figures: Figures) -> Iterator[Row]:
    """Yield the cost of the chosen filter strategy beside each strategy alone."""
    for size, one in figures.items():
        what, ways = f"filters, {int(size):,} memories", one["always_ms"]
        alone = ", ".join(f"always {way.replace('_', ' ')} {_middle_and_most(taken)}" for way, taken in ways.items())
        yield Row(f"{what}, chosen way, median and most", f"{_middle_and_most(one['chosen_ms'])} ms", alone)
        yield Row(f"{what}, lost by the choice", f"{_middle_and_most(one['regret_ms'])} ms", "the better way")
        yield Row(f"{what}, recall", f"{one['recall']:g}", "brute force", "1.0", one["recall"] == 1.0)


def _middle_and_most(figure: Figures) -> str:
    return f"{figure['median']:g}, {figure['most']:g}"


def learning_rows(figures: Figures) -> Iterator[Row]:
    """Yield the cost of updates, relearning and the state, then that of a recall."""
    target = figures["target_update_ms"]
    for size, one in figures["updates"].items():
        for name, what in (("learned_ms", "one run more"), ("revised_ms", "revised"), ("forgotten_ms", "forgotten")):
            median = one[name]["median"]
            yield Row(f"learning, {size} runs, {what}", f"{_spread(one[name])} ms", f"p99 {one[name]['p99']:g} ms",
                      f"< {target:g} ms", median < target)  # fmt: skip
        asked = one["asked_ms"]
        yield Row(f"learning, {size} runs, asked", f"{_spread(asked)} ms", f"p99 {asked['p99']:g} ms")
    state, room = figures["state"], figures["target_state_mb"]
    yield Row(f"learning, {state['lessons']} runs relearned", f"{_spread(state['anew_ms'])} ms",
              f"twice as many, condensed, {state['condensed_ms']:g} ms")  # fmt: skip
    size_mb = state["state_mb"]
    yield Row("learning, state of one user", f"{size_mb:g} MB", "", f"≤ {room:g} MB", size_mb <= room)
    asked, most = figures["recall"], figures["target_slower_ms"]
    yield Row(f"recall in process behind the model, {asked['credited']} runs learned", f"{_spread(asked['on_ms'])} ms",
              f"learning off {_spread(asked['off_ms'])} ms")  # fmt: skip
    yield Row("recall, slower by the learned ranking", f"{_spread(asked['slower_ms'])} ms", "0", f"≤ {most:g} ms",
              asked["slower_ms"]["median"] <= most)  # fmt: skip


def _spread(figure: Figures) -> str:
    return f"{figure['median']:g} ({figure['least']:g}–{figure['most']:g})"
