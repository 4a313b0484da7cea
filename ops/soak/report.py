"""Formats the records of a soak as `ops/soak/REPORT.md`, with a plot. The only side effect is writing these two
files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from ops.bench.spread import percentile
from ops.soak.record import Joined, Sample, errors, milliseconds, read
from ops.soak.slope import Slope, line, mean_slope, slope_of

WARM_S = 300.0
"""A daemon's first minutes do not count as growth, because it opens stores and fills caches during that time."""
GREW_PERCENT = 2.0
"""An hourly increase of less than this is not reported as growth."""
_FEWEST_SAMPLES = 8
_HOUR_S = 3_600.0
_MB = 1e6
_MEASURES = {
    "RSS, MB": ("rss", _MB),
    "PSS, MB": ("pss", _MB),
    "open files": ("files", 1.0),
    "threads": ("threads", 1.0),
}
_GUARANTEES = {
    "lost": "an acknowledged memory, shared item or event is missing",
    "doubled": "a memory or an event exists twice",
    "risen": "a removed memory or item has reappeared",
    "foreign": "a user received another user's text",
    "died": "the daemon exited on its own",
    "unclean": "the daemon ended with an error when it was stopped",
    "not started": "a start failed",
    "not compared": "the stores could not be compared with the ledger",
    "left": "a process or a file was left behind",
}
_EXPECTED = """## What may grow

The amount of data on the disk is bounded, because only a user's newest 40 memories and 3 items are kept. The journal
retains only its newest 4 MB, but its file does not shrink until an erasure rewrites it. Stores reuse the pages of
removed memories, but their files do not shrink. `erasures` grows by 36 bytes with each erased id, since a restore
repeats the erasures; `owners` is limited by a maximum number of runs. The ledger, the logs and the record are outside
the data folder."""

Value = Callable[[Sample], float]


def write_report(folders: Sequence[Path], page: Path) -> None:
    """Write the report on the records in `folders` to `page`, and the plot beside it as `report.png`."""
    joined = read(folders)
    page.write_text(report(joined), encoding="utf-8")
    _draw(joined, page.with_name("report.png"))


def report(joined: Sequence[Joined]) -> str:
    """Return the report."""
    hours = sum(one.hours for one in joined)
    head = [
        f"# A soak of {hours:.1f} hours",
        "",
        "Written by `python -m ops.soak --report FOLDER...` from the records of `python -m ops.soak`. Users store,",
        "recall, list and forget memories, publish events, call hooks, perform runs, and share, search and rate items,",
        "over ZeroMQ, HTTP and the relay. Streams follow the events of five users. Memories and entire users are",
        "erased. The daemon is killed (SIGKILL) and stopped (SIGTERM) in turn, under load. After each restart, and at",
        "the end, all stores are compared with a ledger of the acknowledged writes.",
        "",
    ]
    sections = [line for one in joined for line in _section(one)]
    return "\n".join([*head, "![memory, open files and disk over time](report.png)", "", *sections, _EXPECTED, ""])


def _section(one: Joined) -> list[str]:
    return [
        f"## {one.hours:.1f} hours: {one.name}",
        "",
        *_parts(one),
        *_guarantees(one),
        *_by_hour(one),
        *_growth(one),
        *_requests(one),
    ]


def _parts(one: Joined) -> list[str]:
    rows = [
        (
            f"{part['at'][:16].replace('T', ' ')} UTC",
            part["commit"],
            f"{float(end['soaked_s']) / _HOUR_S:.2f}",
            f"{part['rate']:g}",
            f"{part['machine']['processor']}, {part['machine']['cores']} cores",
            end.get("how", "the soak was killed"),
        )
        for part, end in zip(one.parts, one.ends, strict=True)
    ]
    return _table(("started", "commit", "hours", "requests/s", "machine", "end"), rows)


def _guarantees(one: Joined) -> list[str]:
    found = Counter(str(finding["kind"]) for finding in one.lines("finding"))
    ready: dict[str, list[float]] = {}
    for restart in one.lines("restart"):
        ready.setdefault(restart["how"], []).append(float(restart["ready_s"]))
    compared = [int(line["memories"]) for line in one.lines("compared")]
    rows = [(what, f"{found[kind]}") for kind, what in _GUARANTEES.items()]
    started = ", ".join(f"{len(s)} after a {how} (ready in at most {max(s):.1f} s)" for how, s in ready.items())
    complaints: Counter[str] = Counter()
    for line_ in (*one.lines("restart"), *one.lines("end")):
        complaints.update(line_["complaints"])
    return [
        f"Restarts of the daemon: {started or 'none'}. {len(compared)} comparisons of all stores with the ledger",
        f"covered {sum(compared):,} memories. Warnings and errors in its logs: {_listed(complaints) or 'none'}.",
        "",
        *_table(("violated guarantee", "times"), rows),
        *(f"- {finding['kind']}: {finding['user']} {finding['what']}" for finding in list(one.lines("finding"))[:20]),
        "",
    ]


def _by_hour(one: Joined) -> list[str]:
    rows = []
    for hour in range(int(one.samples[-1].at_s // _HOUR_S) + 1 if one.samples else 0):
        inside = [sample for sample in one.samples if sample.at_s // _HOUR_S == hour]
        if not inside:
            continue
        ms = [value for values in milliseconds(inside).values() for value in values]
        failed = errors(inside, is_disturbed=True).total(), errors(inside, is_disturbed=False).total()
        rows.append(
            (
                str(hour + 1),
                *(
                    f"{np.mean([_all(name)(sample) for sample in inside]) / unit:.0f}"
                    for name, unit in _MEASURES.values()
                ),
                f"{np.mean([disk_of(sample) for sample in inside]) / _MB:.0f}",
                f"{_cores(inside):.2f}",
                f"{len(ms):,}",
                f"{percentile(ms, 50):.0f} / {percentile(ms, 99):.0f}" if ms else "",
                f"{failed[0]} / {failed[1]}",
            )
        )
    heads = ("hour", *_MEASURES, "disk, MB", "cores used", "requests", "p50 / p99, ms", "errors: at restarts / other")
    return ["Hourly means, summed over all processes of the daemon:", "", *_table(heads, rows)]


def _growth(one: Joined) -> list[str]:
    warm = [[sample for sample in life if sample.life_s >= WARM_S] for life in one.lives()]
    lives = [life for life in warm if len(life) >= _FEWEST_SAMPLES]
    series: list[tuple[str, Value, float]] = [
        (f"{role}: {name}", _of(role, key), unit)
        for role in sorted({role for sample in one.samples for role in sample.line["roles"]})
        for name, (key, unit) in _MEASURES.items()
    ]
    names = sorted({name for sample in one.samples for name in sample.line["disk"]} - {"files"})
    series += [(f"disk: {name}, MB", _disk(name), _MB) for name in names if name != "."]
    series.append(("disk: all, MB", disk_of, _MB))
    rows = []
    for name, value, unit in series:
        mean = float(np.mean([value(sample) for life in lives for sample in life])) / unit if lives else 0.0
        inside = [_slope(life, value, unit) for life in lives]
        within = mean_slope(inside) if len(inside) > 1 else _slope_of_one(lives, value, unit)
        middles = [float(np.mean([sample.at_s for sample in life])) / _HOUR_S for life in lives]
        means = [float(np.mean([value(sample) for sample in life])) / unit for life in lives]
        between = line(middles, means) if len(lives) > 2 else None
        rows.append((name, f"{mean:.1f}", _grown(within, mean), _grown(between, mean)))
    return [
        f"Growth per hour, with 95 % intervals; the first {WARM_S / 60:.0f} minutes of each run are excluded. Growth",
        f"within a run is the mean of the least-squares slopes of {len(lives)} runs of the daemon, and growth from run",
        "to run is the slope of the runs' means. A value is bold if its interval excludes 0 and the value exceeds",
        f"{GREW_PERCENT:g} % of the mean per hour. `load` is the soak itself.",
        "",
        *_table(("", "mean", "within a run", "from run to run"), rows),
    ]


def _requests(one: Joined) -> list[str]:
    ms = one.requests()
    failed = [errors(one.samples, is_disturbed=is_disturbed) for is_disturbed in (True, False)]
    rows = []
    for kind in sorted(ms.keys() | {name.partition(":")[0] for counted in failed for name in counted}):
        taken = ms.get(kind, [])
        codes = [
            {name.partition(": ")[2]: count for name, count in counted.items() if name.partition(":")[0] == kind}
            for counted in failed
        ]
        shown = [f"{percentile(taken, percent):.0f}" if taken else "" for percent in (50, 99)]
        rows.append((kind, f"{len(taken):,}", *shown, *map(_listed, codes)))
    return _table(("request", "answered", "p50, ms", "p99, ms", "errors at restarts", "other errors"), rows)


def disk_of(sample: Sample) -> float:
    """Return the allocated bytes of the data folder."""
    return float(sum(size for name, size in sample.line["disk"].items() if name != "files"))


def _disk(name: str) -> Value:
    return lambda sample: float(sample.line["disk"].get(name, 0))


def _of(role: str, name: str) -> Value:
    return lambda sample: float(sample.line["roles"].get(role, {}).get(name, 0))


def _all(name: str) -> Value:
    return lambda sample: float(sum(one[name] for role, one in sample.line["roles"].items() if role != "load"))


def _cores(samples: Sequence[Sample]) -> float:
    """Return the mean number of cores used by the daemon and by the soak, over the periods without a restart."""
    used = seconds = 0.0
    for before, after in pairwise(samples):
        if before.life == after.life:
            late = after.line["roles"]
            used += sum(
                max(0.0, late[role]["cpu_s"] - one["cpu_s"])
                for role, one in before.line["roles"].items()
                if role in late
            )
            seconds += after.at_s - before.at_s
    return used / seconds if seconds else 0.0


def _slope(life: Sequence[Sample], value: Value, unit: float) -> float:
    times = [sample.at_s / _HOUR_S for sample in life]
    return line(times, [value(sample) / unit for sample in life]).slope


def _slope_of_one(lives: Sequence[Sequence[Sample]], value: Value, unit: float) -> Slope | None:
    """Return the slope of a single long run."""
    if len(lives) != 1 or len(lives[0]) < 24:
        return None
    return slope_of([sample.at_s / _HOUR_S for sample in lives[0]], [value(sample) / unit for sample in lives[0]])


def _grown(slope: Slope | None, mean: float) -> str:
    if slope is None:
        return "too few runs"
    shown = f"{slope.slope:.1f} ({slope.low:.1f} to {slope.high:.1f})"
    return f"**{shown}**" if slope.low > 0 and slope.slope > mean * GREW_PERCENT / 100 else shown


def _listed(counts: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [" | ".join(row) for row in (head, ("---", *["---:"] * (len(head) - 1)), *rows)]
    return [*(f"| {text} |" for text in lines), ""]


def _draw(joined: Sequence[Joined], file: Path) -> None:
    from matplotlib.figure import Figure  # from the extra `plot`

    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    shown: list[tuple[str, Value, float]] = [
        ("PSS, MB", _all("pss"), _MB),
        ("open files", _all("files"), 1.0),
        ("disk, MB", disk_of, _MB),
    ]
    for axes, (label, value, unit) in zip(panels, shown, strict=True):
        for one in joined:
            times = [sample.at_s / _HOUR_S for sample in one.samples]
            axes.plot(times, [value(sample) / unit for sample in one.samples], linewidth=0.8, label=one.name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize="small")
    panels[-1].set_xlabel("hours")
    figure.savefig(file, dpi=80)
