"""The demo's closing tables: the outcome of every event, the memory use of processes, and the recall latency."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from memory_agent.cli.render import counted
from ops.demo.ledger import Ledger, make_ledger
from ops.demo.stage import Stage
from ops.process_memory import ProcessMemory, measure_tree

_RECALLS = 60
_MEGABYTE = 1e6


def close_the_books(stage: Stage) -> None:
    """Show the events' outcomes, the processes' memory use, and the recall latency."""
    took_ms = _time_recalls(stage)
    status = stage.status()
    stats = [stage.client(user).stats() for user in stage.users]
    patterns = sum(len(stage.patterns(user)) for user in stage.users)
    ledger = make_ledger(stage.published + stage.torn, stage.repeats, status, stats)
    stage.screen.table(_ledger_rows(ledger))
    stage.screen.say(f"in addition, the memory itself published {counted(ledger.blocks, 'block')}", "dim")
    stage.screen.promise("lost: 0", ledger.lost == 0)
    stage.screen.promise(
        f"{ledger.memories} memories: {ledger.kept} from events and {patterns} patterns; no duplicates",
        ledger.memories == ledger.kept + patterns,
    )
    stage.screen.gap()
    names = {part.pid: part.name for part in status.parts if part.pid is not None}
    rows = _memory_rows(measure_tree(stage.pid_of("daemon"), names))
    stage.screen.table(rows, header=("process", "memory", "its share"))
    stage.screen.say("its share: memory of the process, with shared pages divided among their processes", "dim")
    stage.screen.gap()
    p50, p99 = statistics.median(took_ms), statistics.quantiles(took_ms, n=100)[98]
    stage.screen.say(f"{len(took_ms)} different questions through the daemon: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def _time_recalls(stage: Stage) -> list[float]:
    """Recall with different queries as both users; return the latencies in milliseconds."""
    questions = [(user, text) for user in stage.story.users for text in stage.story.texts(user)]
    took_ms = []
    for user, text in questions[:_RECALLS]:
        started_s = time.perf_counter()
        stage.client(user).recall(f"What do we know about this: {text}")
        took_ms.append((time.perf_counter() - started_s) * 1000)
    return took_ms


def _ledger_rows(ledger: Ledger) -> list[tuple[str, str]]:
    rows = [
        ("events published by emitters", f"{ledger.published}"),
        ("  recognised as repeats by the relay", f"{ledger.repeats}"),
        ("  in quarantine: malformed", f"{ledger.quarantined}"),
        ("  acknowledged and journaled", f"{ledger.journaled}"),
        ("    kept as memories", f"{ledger.kept}"),
        *((f"    dropped: {reason.replace('_', ' ')}", f"{number}") for reason, number in ledger.dropped.items()),
    ]
    colour = "green" if ledger.lost == 0 else "red"
    return [*rows, (f"[bold {colour}]lost[/]", f"[bold {colour}]{ledger.lost}[/]")]


def _memory_rows(processes: Sequence[ProcessMemory]) -> list[tuple[str, ...]]:
    ours = [process for process in processes if not process.role.startswith("Ray")]
    rays = [process for process in processes if process.role.startswith("Ray")]
    rows = [(process.role, *_sizes([process])) for process in ours]
    rows.append((f"Ray itself, {counted(len(rays), 'process', 'processes')}", *_sizes(rays)))
    return [*rows, ("[bold]in all[/]", *_sizes(processes))]


def _sizes(processes: Sequence[ProcessMemory]) -> tuple[str, str]:
    rss = sum(process.rss_bytes for process in processes) / _MEGABYTE
    pss = sum(process.pss_bytes for process in processes) / _MEGABYTE
    return f"{rss:.0f} MB", f"{pss:.0f} MB"
