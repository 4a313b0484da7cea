"""Converts benchmark results to the rows of one table: measurement, result, baseline, target and verdict. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]

_MCP_START_MS = 150
_HOOK_MS = 300
_MCP_MB = 25


@dataclass(frozen=True)
class Row:
    """One table row. `reached` is None if the design has no target for the measurement."""

    figure: str
    measured: str
    baseline: str = ""
    target: str = ""
    reached: bool | None = None


def all_rows(parts: Figures) -> list[Row]:
    """Return the rows of all measured parts, in table order."""
    readers = {
        "embedding": embedding_rows,
        "providers": providers_rows,
        "journal": journal_rows,
        "ingest": ingest_rows,
        "recall": recall_rows,
        "cost": cost_rows,
        "ingesting": ingesting_rows,
        "load": load_rows,
        "hosts": hosts_rows,
        "resident": resident_rows,
        "light": light_rows,
        "storage": storage_rows,
        "filters": filters_rows,
        "indexes": indexes_rows,
        "shared": shared_rows,
        "learning": learning_rows,
        "triggers": triggers_rows,
        "http": http_rows,
        "mcp": mcp_rows,
        "hook": hook_rows,
        "archiving": archiving_rows,
        "nodes": nodes_rows,
        "moves": moves_rows,
    }
    return [row for name, read in readers.items() if name in parts for row in read(parts[name])]


def embedding_rows(figures: Figures) -> Iterator[Row]:
    """Yield each variant's throughput and query time, then the ratios."""
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


def providers_rows(figures: Figures) -> Iterator[Row]:
    """Yield the overhead that we add to a model on a server: throughput, processor time and the time of a query."""
    for name, kind in figures.items():
        yield Row(
            f"embedding by a server that answers at once, {name}",
            f"{_spread(kind['texts_per_s'])} texts/s",
            f"{_spread(kind['processor_ms'])} ms of processor time a text, query {_spread(kind['query_ms'])} ms",
        )


def journal_rows(figures: Figures) -> Iterator[Row]:
    """Yield each window's events/s and ack latency, compared with a bare in-process commit."""
    bare = figures["commit"]
    for name, window in figures.items():
        if name != "commit":
            yield Row(
                f"journal, {name.replace('_', ' ')}",
                f"{window['events_per_s']} events/s, ack p50 {window['ack_p50_ms']}, p99 {window['ack_p99_ms']} ms",
                f"one bare commit {bare['ack_p50_ms']} ms",
            )


def ingest_rows(figures: Figures) -> Iterator[Row]:
    """Yield the rate at which published events become recallable, compared with that of embedding alone."""
    share, target = figures["share"]["median"], figures["target_share"]
    yield Row(
        f"ingest, from publication until recallable, {figures['tokens_mean']:g} tokens",
        f"{_spread(figures['events_per_s'])} events/s",
        f"only embedding {_spread(figures['embedder_alone_per_s'])}",
    )
    yield Row(
        "ingest, share of the embedder's rate",
        _spread(figures["share"]),
        "1.0",
        f"≥ {target:g}",
        share >= target,
    )
    parts = figures["processor_ms"]
    shown = ", ".join(f"{name} {spent_ms:g}" for name, spent_ms in sorted(parts.items()))
    bound = parts["embedder"] / sum(parts.values())
    yield Row(
        "ingest, processor time per event", f"{sum(parts.values()):.2f} ms", f"{shown}: {bound:.2f} for embedding"
    )


def recall_rows(figures: Figures) -> Iterator[Row]:
    """Yield recall latency over RPC and in process, and the processor time of a recall."""
    ratio, tail = figures["p50_ratio"]["median"], figures["p99_over_p50"]
    less, target_less = figures["rpc_less_in_embeddings"], figures["target_rpc_less"]
    whole, target_whole = figures["rpc_processor_in_embeddings"], figures["target_processor"]
    yield Row(
        f"recall through RPC, {figures['memories']:,} memories, p50",
        f"{_spread(figures['rpc_p50_ms'])} ms",
        f"in process {_spread(figures['in_process_p50_ms'])} ms",
    )
    yield _at_most("recall through RPC relative to recall in process, p50", ratio, figures["target_p50_ratio"], "times",
                   measured=_spread(figures["p50_ratio"]), beside="1.0")  # fmt: skip
    yield _at_most("recall through RPC minus recall in process, p50", less["median"], target_less,
                   measured=f"{_spread(less)} embeddings",
                   beside=f"embedding {_spread(figures['embedding_ms'])} ms")  # fmt: skip
    yield Row(
        "recall through RPC, processor time of all processes",
        f"{_spread(whole)} embeddings ({figures['rpc_processor_ms']['median']:g} ms)",
        f"idle {figures['idle_share_of_a_core']['median']:.1%} of a core, not counted",
        f"≤ {target_whole:g}",
        whole["median"] <= target_whole,
    )
    over = figures["p50_over_vectors"]
    yield _at_most("recall through RPC relative to vectors only, p50", over["median"],
                   figures["target_over_vectors"], "times", measured=_spread(over),
                   beside=f"vectors only {_spread(figures['vectors_p50_ms'])} ms")  # fmt: skip
    yield Row(
        "recall through RPC, p99 / p50",
        f"{tail:g} times ({figures['rpc_p99_ms']} ms)",
        f"in process p99 {figures['in_process_p99_ms']} ms",
        f"≤ {figures['target_p99_over_p50']:g} times",
        tail <= figures["target_p99_over_p50"],
    )


def load_rows(figures: Figures) -> Iterator[Row]:
    """Yield the latency of queries, and how much bulk work delays them, in the lanes and over RPC."""
    target, longest = figures["target_embeddings"], f"longest text {figures['longest_ms']:g} ms"
    for way, kinds in (("in the lanes", figures["lanes"]), ("recall through RPC", figures["rpc"])):
        for name, one in kinds.items():
            rate, alone = one.get("bulk_per_s"), one.get("bulk_alone_per_s")
            beside = "" if rate is None else f"{_spread(rate)} per second in bulk"
            beside += "" if alone is None else f", without queries {_spread(alone)}"
            yield Row(f"load, {way}, {name}", f"{_spread(one['p50_ms'])} ms, p99 {one['p99_ms']} ms", beside)
            if name != "idle":
                late = one["delay_in_embeddings"]
                yield Row(f"load, {way}, {name}, delay", f"{late['p50']:g} embeddings, p99 {late['p99']:g}", longest,
                          f"≤ {target:g}", max(late.values()) <= target)  # fmt: skip


_INGEST_PARTS = {"processor": "in all", "embedder": "for embedding", "hosts": "in hosts"}


def hosts_rows(figures: Figures) -> Iterator[Row]:
    """Yield the costs of a host call and of a recall through RPC, then the rates by number of hosts."""
    calls, alone, load, ingest = (figures[name] for name in ("calls", "alone", "load", "ingest"))
    yield Row("hosts, empty call over a socket", f"{_spread(calls['socket_ms'])} ms", f"Ray {_spread(calls['ray_ms'])}")
    over, limit = alone["over_in_process_embeddings"], alone["target_rpc_embeddings"]
    yield Row("recall through RPC minus recall in process, in multiples of one embedding", _spread(over),
              f"{_spread(alone['rpc_ms'])} minus {_spread(alone['in_process_ms'])} ms; one embedding "
              f"{_spread(alone['embedding_ms'])}", f"≤ {limit:g}", over["median"] <= limit)  # fmt: skip
    whole, most = alone["processor_embeddings"], alone["target_all_embeddings"]
    parts = ", ".join(f"{name} {spent:g}" for name, spent in alone["processor_ms"].items())
    yield Row("recall through RPC, processor time in multiples of one embedding", _spread(whole), f"{parts} ms",
              f"≤ {most:g}", whole["median"] <= most)  # fmt: skip
    for hosts, one in load["by_hosts"].items():
        yield Row(f"recall, {load['clients']} clients, {hosts} hosts", f"{_spread(one['recalls_per_s'])} recalls/s",
                  f"p50 {one['p50_ms']:g}, p99 {one['p99_ms']:g} ms", f"p99 ≤ {load['target_p99_over_p50']:g} p50",
                  one["p99_over_p50"] <= load["target_p99_over_p50"])  # fmt: skip
    for hosts, one in ingest["by_hosts"].items():
        spent = ", ".join(f"{_spread(one[f'{name}_ms'])} {what}" for name, what in _INGEST_PARTS.items())
        yield Row(f"ingest of 4 users, {hosts} hosts", f"{_spread(one['events_per_s'])} events/s",
                  f"ms of processor time per event: {spent}; {_spread(one['busy'])} of all cores busy")  # fmt: skip
    growth = figures["target_growth"]
    for name, part in (("recalls", load), ("ingest", ingest)):
        yield Row(f"hosts, {name} with two hosts versus one", f"{_spread(part['growth'])} times", "1.0",
                  f"≥ {growth:g} times", part["growth"]["median"] >= growth)  # fmt: skip


def resident_rows(figures: Figures) -> Iterator[Row]:
    """Yield the memory use of each process, all processes and a filled store."""
    for name, process in figures["processes"].items():
        yield Row(f"resident, {name}", f"{process['pss_mb']:g} MB", f"RSS {process['rss_mb']:g} MB")
    daemon, target = figures["daemon_pss_mb"], figures["target_daemon_mb"]
    yield Row("resident, daemon with one user, Ray included", f"{daemon:g} MB", f"RSS {figures['daemon_rss_mb']:g} MB",
              f"≤ {target} MB", daemon <= target)  # fmt: skip
    grown, limit = figures["filled_pss_mb"], figures["target_filled_mb"]
    yield Row("resident, filled store minus an empty actor", f"{grown:g} MB", f"RSS {figures['filled_rss_mb']:g} MB",
              f"≤ {limit} MB", grown <= limit)  # fmt: skip
    disk, room = figures["disk_mb"], figures["target_disk_mb"]
    yield Row("disk, filled store", f"{disk:g} MB", "", f"≤ {room} MB", disk <= room)


def light_rows(figures: Figures) -> Iterator[Row]:
    """Yield the start-up time, memory use, recall latency and idle load of the daemon without Ray, compared with the
    full form.
    """
    light, full = figures["light"], figures["full"]
    yield _at_most("light: time from start to ready", light["start_s"]["median"], figures["target_start_s"], "s",
                   measured=_spread(light["start_s"]), beside=f"full {_spread(full['start_s'])} s")  # fmt: skip
    yield _at_most(f"light: resident, one user with {figures['memories']:,} memories", light["pss_mb"],
                   figures["target_mb"], "MB", beside=f"full {full['pss_mb']:g} MB")  # fmt: skip
    yield Row("light: recall", f"{_spread(light['recall_ms'])} ms", f"full {_spread(full['recall_ms'])} ms")
    yield Row("light: idle", f"{light['idle_share_of_a_core']:.2%} of a core",
              f"full {full['idle_share_of_a_core']:.2%}")  # fmt: skip


def archiving_rows(figures: Figures) -> Iterator[Row]:
    """Yield how long archiving to a local folder takes, and the delay that archiving adds to batches."""
    what = f"archive, {figures['memories']:,} memories"
    yield Row(f"{what}, snapshot", f"{_spread(figures['snapshot_ms'])} ms", f"{figures['snapshot_mb']:g} MB")
    yield Row(f"{what}, increment of {figures['batch']} memories", f"{_spread(figures['increment_ms'])} ms",
              f"{figures['increment_kb']:g} KB")  # fmt: skip
    for name, took in {
        "": "restore_ms",
        f" with {figures['increments']} increments": "restore_with_increments_ms",
    }.items():
        yield _at_most(f"{what}, restored{name}", figures[took]["median"], figures["target_restore_ms"], "ms",
                       measured=_spread(figures[took]))  # fmt: skip
    yield Row(f"{what}, batch of {figures['batch']}, with archiving, relative to one without it",
              f"{figures['batch_ratio']:g} times", f"with {_spread(figures['archived_batch_ms'])} ms, "
              f"without {_spread(figures['plain_batch_ms'])} ms")  # fmt: skip


def nodes_rows(figures: Figures) -> Iterator[Row]:
    """Yield the memory use of many awake users and of a machine that joined, and the rates of one and two machines."""
    for form, one in figures["awake"].items():
        what = f"nodes: {one['users_awake']:,} users awake, {form} form"
        yield Row(f"{what}, resident", f"{one['pss_mb_after_recalls']:g} MB",
                  f"{one['pss_mb_with_one']:g} MB with one user; {one['memories_of_each']} memories each")  # fmt: skip
        woke, again = one["first_recall_ms"], one["recall_ms"]
        yield Row(f"{what}, recall", f"p50 {again['p50']:g} ms, p99 {again['p99']:g} ms",
                  f"first recall of each user p50 {woke['p50']:g} ms, p99 {woke['p99']:g} ms")  # fmt: skip
    joined = figures["joined"]
    yield Row("nodes: a machine that joined, resident", f"{joined['pss_mb_without_users']:g} MB",
              f"with {joined['hosts']} host {joined['pss_mb_with_hosts']:g} MB")  # fmt: skip
    if pinned := figures["pinned"]:
        one, two = pinned["one"], pinned["two"]
        yield Row("nodes: recalls with two single-core machines versus one", f"{pinned['growth']:g} times",
                  f"{_spread(two['recalls_per_s'])} versus {_spread(one['recalls_per_s'])} recalls/s")  # fmt: skip
        yield Row("nodes: ingestion with two single-core machines versus one",
                  f"{_spread(two['events_per_s'])} versus {_spread(one['events_per_s'])} events/s",
                  f"{two['processor_ms_per_event']:g} versus {one['processor_ms_per_event']:g} ms")  # fmt: skip
        spent = ", ".join(f"{part} {ms:g}" for part, ms in two["processor_ms_per_recall"].items())
        yield Row("nodes: processor time of a recall with two machines",
                  f"{sum(two['processor_ms_per_recall'].values()):.2f} ms", spent)  # fmt: skip


def moves_rows(figures: Figures) -> Iterator[Row]:
    """Yield the latencies of requests while users move, and the time until requests from a killed machine's users are
    answered.
    """
    what = f"moves: {figures['users']} users with {figures['memories']:,} memories"
    quiet, moving, killed = figures["quiet"], figures["moving"], figures["killed"]
    most_ms, most_s = figures["target_p99_ms"], figures["target_recovery_s"]
    refused = f"{moving['refusals']} of {moving['requests']:,} refused"
    yield Row(f"{what}, all requests during {moving['moves']} moves", _latencies(moving),
              f"without moves {_latencies(quiet)}; {refused}", f"p99 ≤ {most_ms:g} ms, none refused",
              moving["p99_ms"] <= most_ms and not moving["refusals"])  # fmt: skip
    yield Row(f"{what}, {moving['met']['requests']} requests that waited for a move or were the first after it",
              _latencies(moving["met"]))  # fmt: skip
    answer_s, lost = killed["first_answer_s"], figures["lost"]
    yield Row(f"{what}, first answer after the loss of a machine was detected", f"{_spread(answer_s)} s",
              f"detected after {_spread(killed['detected_s'])} s; {lost} of {figures['acknowledged']:,} lost",
              f"≤ {most_s:g} s, none lost", answer_s["most"] <= most_s and not lost)  # fmt: skip


def _latencies(requests: Figures) -> str:
    return f"p50 {requests['p50_ms']:g}, p99 {requests['p99_ms']:g}, longest {requests['most_ms']:g} ms"


def cost_rows(figures: Figures) -> Iterator[Row]:
    """Yield the cost of an in-process recall at each store size, counted in embeddings, Python calls and statements."""
    for size, one in figures.items():
        what, over = f"recall in process, {int(size):,} memories", one["in_embeddings"]
        embedding, processor = _spread(one["embedding_ms"]), _spread(one["in_embeddings_by_processor"])
        measured = f"{_spread(one['recall_ms'])} ms, p99 {one['recall_p99_ms']:g} ms"
        yield Row(f"{what}, p50", measured,
                  f"embedding {embedding} ms, in a row {_spread(one['embedding_in_a_row_ms'])}")  # fmt: skip
        yield _at_most(f"{what}, relative to embedding", over["median"], one["target"], "times",
                       measured=_spread(over), beside=f"{processor} by processor time")  # fmt: skip
        yield _at_most(f"{what}, Python function calls", one["calls"], one["target_calls"])
        yield _at_most(f"{what}, SQL statements", one["statements"], 0)


def ingesting_rows(figures: Figures) -> Iterator[Row]:
    """Yield recall latency during ingest relative to idle, with precomputed vectors and then with the model."""
    targets = {"precomputed vectors": ("known", figures["target_p50"]), "embedded by the model": ("embedded", None)}
    for name, (way, target) in targets.items():
        what, one = f"recall while ingesting, {figures['memories']:,} memories, {name}", figures[way]
        yield Row(f"{what}, p50", f"{_spread(one['loaded_ms'])} ms, p99 {one['loaded_p99_ms']:g} ms",
                  f"idle {_spread(one['idle_ms'])} ms, p99 {one['idle_p99_ms']:g} ms")  # fmt: skip
        over, p99 = one["p50_ratio"], _spread(one["p99_ratio"])
        yield _at_most(f"{what}, p50 relative to idle", over["median"], target, "times", measured=_spread(over),
                       beside=f"p99 {p99} times, {_spread(one['memories_per_s'])} memories/s")  # fmt: skip


def storage_rows(figures: Figures) -> Iterator[Row]:
    """Yield the ingest cost, memory and disk space at each store size, then the cost's growth and the worst batch."""
    for size, one in figures["sizes"].items():
        what, targets = f"storage, {int(size):,} memories", one["targets"]
        yield Row(f"{what}, ingest without embedding",
                  f"{one['processor_ms_a_memory']:g} ms of processor time per memory",
                  f"{one['wall_ms_a_memory']:g} ms wall time")  # fmt: skip
        yield _at_most(f"{what}, resident", one["resident_mb"], targets.get("resident_mb"), "MB",
                       beside=f"anonymous {one['anonymous_mb']:g} MB")  # fmt: skip
        yield _at_most(f"{what}, disk", one["disk_mb"], targets.get("disk_mb"), "MB",
                       beside=f"opened in {one['open_ms']:g} ms")  # fmt: skip
    least, most = (f"{choose(map(int, figures['sizes'])):,}" for choose in (min, max))
    yield _at_most(f"storage, ingest at {most} memories relative to {least}", figures["growth"],
                   figures["target_growth"], "times")  # fmt: skip
    worst, processor = figures["worst"], figures["worst_by_processor"]
    yield _at_most("storage, worst batch relative to the median", worst["ratio"], figures["target_worst"], "times",
                   beside=f"{worst['most_ms']:g} ms; {processor['ratio']:g} times in processor time")  # fmt: skip


def filters_rows(figures: Figures) -> Iterator[Row]:
    """Yield the cost of a filtered recall relative to an unfiltered recall, and the vector recall@10."""
    for size, one in figures.items():
        what, over, target = f"filters, {int(size):,} memories", one["over_none"], one["target_recall"]
        yield Row(
            f"{what}, recall relative to an unfiltered recall",
            f"{over['median']:g}, at most {over['most']:g} times",
            "1.0",
        )
        yield Row(f"{what}, vector recall@10", f"{one['recall']:g}", "brute force", f"{target:g}",
                  one["recall"] >= target)  # fmt: skip


def indexes_rows(figures: Figures) -> Iterator[Row]:
    """Yield the search times and the recall@10 of each vector index."""
    for size, engines in figures.items():
        for name, one in engines.items():
            what, built_in = f"index {name}, {int(size):,} memories", engines["builtin"]
            yield Row(f"{what}, search", f"{one['p50_ms']:g} ms", f"{built_in['p50_ms']:g} ms built in")
            yield Row(f"{what}, recall@10", f"{one['recall']:g}", "brute force", "0.95", one["recall"] >= 0.95)


def shared_rows(figures: Figures) -> Iterator[Row]:
    """Yield the costs of searching shared items, of recalling from both tiers, and of recalls by other users."""
    for size, one in figures.items():
        for name, over, figure, target in (
            (
                "items",
                "own",
                "search time relative to that of a recall from the same number of the user's own memories",
                "target_over_own",
            ),
            ("both", "own", "recall of both tiers relative to the user's own memories", "target_local"),
            ("own", "unshared", "recall of own memories with a shared store, relative to without one", "target_local"),
            (
                "beside_both",
                "beside_own",
                "recall of own memories while another user recalls two tiers, relative to that user recalling one",
                None,
            ),
        ):
            times = one[f"{name}_over_{over}"]
            these, those = (f"{_spread(one[f'{way}_ms'])} ms, p99 {one[f'{way}_ms']['p99']:g}" for way in (name, over))
            yield _at_most(f"shared, {int(size):,} items, {figure}", times["median"], one[target] if target else None,
                           "times", measured=_spread(times), beside=f"{these}; {those}")  # fmt: skip
        parts = "; ".join(
            f"{way}: " + ", ".join(f"{name} {ms:g}" for name, ms in one["processor_ms"][way].items())
            for way in ("both", "own")
        )
        path = one["path_both_over_own"]
        yield _at_most(f"shared, {int(size):,} items, recall of both tiers relative to own memories only, one core per "
                       "process", path["median"], one["target_local"], "times", measured=_spread(path),
                       beside=f"processor ms, {parts}")  # fmt: skip


def _at_most(
    figure: str, value: float, limit: float | None, unit: str = "", *, measured: str = "", beside: str = ""
) -> Row:
    """Return the row for a value with an optional upper limit. `measured`, if set, is shown instead of the value."""
    shown = f"{measured or f'{value:g}'} {unit}".rstrip()
    if limit is None:
        return Row(figure, shown, beside)
    return Row(figure, shown, beside, f"≤ {limit:g} {unit}".rstrip(), value <= limit)


def learning_rows(figures: Figures) -> Iterator[Row]:
    """Yield the cost of updates, the cost of relearning, the size of the state, and the time added to a recall."""
    target = figures["target_update_ms"]
    for size, one in figures["updates"].items():
        for name, what in (("learned_ms", "one more run"), ("revised_ms", "revised"), ("forgotten_ms", "forgotten")):
            median = one[name]["median"]
            yield Row(f"learning, {size} runs, {what}", f"{_spread(one[name])} ms", f"p99 {one[name]['p99']:g} ms",
                      f"< {target:g} ms", median < target)  # fmt: skip
        asked = one["asked_ms"]
        yield Row(f"learning, {size} runs, queried", f"{_spread(asked)} ms", f"p99 {asked['p99']:g} ms")
    state, room = figures["state"], figures["target_state_mb"]
    yield Row(f"learning, {state['lessons']} runs relearned", f"{_spread(state['anew_ms'])} ms",
              f"twice as many runs, with condensing: {state['condensed_ms']:g} ms")  # fmt: skip
    size_mb = state["state_mb"]
    yield Row("learning, one user's state", f"{size_mb:g} MB", "", f"≤ {room:g} MB", size_mb <= room)
    asked, most = figures["recall"], figures["target_slower_ms"]
    yield Row(f"recall in process without embedding, {asked['credited']} runs learned", f"{_spread(asked['on_ms'])} ms",
              f"learning off {_spread(asked['off_ms'])} ms")  # fmt: skip
    yield Row("recall, time added by the learned ranking", f"{_spread(asked['slower_ms'])} ms", "0", f"≤ {most:g} ms",
              asked["slower_ms"]["median"] <= most)  # fmt: skip
    yield Row("recall, time added while both rankings are compared", f"{_spread(asked['trial_slower_ms'])} ms", "0")


def triggers_rows(figures: Figures) -> Iterator[Row]:
    """Yield the time from a message's ack to its block, compared with a caller's recall."""
    loads = {"idle": "idle", "ingesting": f"at {figures['events_per_s']} events/s"}
    for name, load in loads.items():
        block, recall = figures[name]["block_ms"], figures[name]["recall_ms"]
        yield Row(
            f"triggered block after the ack, {load}",
            f"p50 {_spread(block['p50'])} ms, p99 {block['p99']} ms",
            f"recall {_spread(recall['p50'])} ms; {block['count']} of {figures[name]['messages']} arrived",
        )


def http_rows(figures: Figures) -> Iterator[Row]:
    """Yield the latencies and rates over HTTP, compared with ZeroMQ."""
    for name, what in (("recall", "recall over HTTP"), ("owner", "verb owner over HTTP")):
        own, other = figures[name]["http"], figures[name]["zmq"]
        yield Row(
            what,
            f"p50 {_spread(own['p50_ms'])} ms, p99 {own['p99_ms']} ms",
            f"over ZeroMQ {_spread(other['p50_ms'])} ms, p99 {other['p99_ms']} ms",
        )
    rates = figures["per_s"]
    yield Row(
        f"recalls over HTTP, {figures['callers']} callers",
        f"{_spread(rates['http'])} requests/s",
        f"over ZeroMQ {_spread(rates['zmq'])} requests/s",
    )


def mcp_rows(figures: Figures) -> Iterator[Row]:
    """Yield the start-up time, memory use and recall latency of `memory-agent mcp`."""
    own, bare = figures["start"]["mcp"], figures["start"]["bare"]
    start_ms, held_mb = own["ms"]["median"], own["mb"]["median"]
    yield Row(
        "mcp, from start to first response",
        f"{_spread(own['ms'])} ms",
        f"bare Python {_spread(bare['ms'])} ms",
        f"< {_MCP_START_MS} ms",
        start_ms < _MCP_START_MS,
    )
    yield Row(
        "mcp, resident",
        f"{_spread(own['mb'])} MB",
        f"bare Python {_spread(bare['mb'])} MB; after recalls {figures['in_use_mb']}",
        f"< {_MCP_MB} MB",
        held_mb < _MCP_MB,
    )
    through, zmq = figures["recall"]["mcp"], figures["recall"]["zmq"]
    yield Row(
        "recall through mcp",
        f"p50 {_spread(through['p50_ms'])} ms, p99 {through['p99_ms']} ms",
        f"over ZeroMQ {_spread(zmq['p50_ms'])} ms, p99 {zmq['p99_ms']} ms",
    )


def hook_rows(figures: Figures) -> Iterator[Row]:
    """Yield a hook's times, compared with those of an interpreter that only reads its input."""
    own, bare = figures["hook"], figures["bare"]
    yield Row(
        "hook, from prompt to context",
        f"p50 {_spread(own['p50_ms'])} ms, p99 {own['p99_ms']} ms",
        f"bare Python {_spread(bare['p50_ms'])} ms, p99 {bare['p99_ms']} ms",
    )
    yield Row(
        "hook, processor time",
        f"{_spread(own['processor_ms'])} ms",
        f"bare Python {_spread(bare['processor_ms'])} ms",
    )
    yield Row(
        "hook, from prompt to exit",
        f"p99 {own['end_p99_ms']} ms",
        f"bare Python {bare['end_p99_ms']} ms; context for {own['answered']} of {own['prompts']} prompts",
        f"< {_HOOK_MS} ms",
        own["end_p99_ms"] < _HOOK_MS,
    )


def _spread(figure: Figures) -> str:
    return f"{figure['median']:g} ({figure['least']:g}–{figure['most']:g})"
