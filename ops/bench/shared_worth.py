"""Measures whether the coordination loop makes first answers more successful for users who never used a shared item.

    python -m ops.bench.shared_worth --data FOLDER     four minutes on two cores; writes ops/bench/shared.md, shared.png

FOLDER contains at least one of `locomo_dev.json`, `beam_dev/`, `airline_runs_dev.json` and `swe_runs_dev.json`.
`shared_worlds` defines the worlds, and `shared_deployment` the deployments. Texts, searches, reports, releases and
merging are real; only the agent that reads an answer is simulated. Before the first report, every arm equals the
deployment with the loop off.

Each seed is a deployment with different kinds of request, runs and random draws; these are identical in all arms. The
95 % intervals resample whole kinds and whole seeds simultaneously (the pigeonhole bootstrap of Owen 2007).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from memory_agent.embedders import open_embedder
from memory_agent.evaluation import FEWEST, RESAMPLES, SEED
from memory_agent.settings import EmbedderSettings, SharedSettings
from ops.bench.machine import describe_machine
from ops.bench.shared_deployment import AS_RELEASED, ORDERS, Agent, Arm, Lived, Searched, Seen, Size, lived
from ops.bench.shared_worlds import SOURCES, Source, World, keep, kept, prepare
from ops.lab.gains import Difference
from ops.lab.stores import CachingEmbedder

PAGE = Path(__file__).with_name("shared.md")

_EASY = Agent(helped=0.95, misled=0.75, alone=0.8)
_EASY_PRIOR = 0.85
LOOP, SHUFFLED, ORACLE, RANDOM = "loop", "shuffled", "helpful proven", "others proven"
NO_PLACE, NEW_ALONE, LATE = "no reserved place", "place only for new items", "late items"
ALIKE = "worse items not last"
INVERT = "10 % invert"
SIX, HUNDRED, BURYING = "six keys", "a hundred keys", "six burying keys"
SEEDS = 8
ARMS = (
    Arm(LOOP),
    Arm(SHUFFLED, reports="shuffled"),
    Arm(RANDOM, proven="random"),
    Arm(ORACLE, proven="helpful"),
    Arm("10 % praise", lie="praise", liars=0.1),
    Arm(INVERT, lie="invert", liars=0.1),
    Arm("20 % praise", lie="praise", liars=0.2),
    Arm(SIX, sybils=6),
    Arm(HUNDRED, sybils=100),
    Arm(BURYING, sybils=6, they="bury"),
    Arm(f"{LOOP}, {ALIKE}", worse_last=False),
    Arm(f"{INVERT}, {ALIKE}", lie="invert", liars=0.1, worse_last=False),
    Arm(f"{SIX}, {ALIKE}", sybils=6, worse_last=False),
    Arm(f"{HUNDRED}, {ALIKE}", sybils=100, worse_last=False),
    Arm(f"{BURYING}, {ALIKE}", sybils=6, they="bury", worse_last=False),
    Arm(NO_PLACE, has_place=False),
    Arm(LATE, late=True),
    Arm(f"{LATE}, {NO_PLACE}", late=True, has_place=False),
    Arm(f"{ORACLE}, {NEW_ALONE}", proven="helpful", proven_share=0.0),
    Arm("easy", agent=_EASY),
    Arm(f"easy, prior {_EASY_PRIOR}", agent=_EASY, prior=_EASY_PRIOR),
)
_LIES = ("10 % praise", INVERT, "20 % praise", SIX, HUNDRED, BURYING)
_DRAWN = (LOOP, SHUFFLED, "10 % praise", INVERT, SIX, ORACLE)
_INCHES, _DOTS_PER_INCH = (7.5, 4.5), 110

Array = npt.NDArray[np.float64]
Key = tuple[str, str, int]
"""A world, a kind of request and a seed."""


class Job(NamedTuple):
    """One deployment."""

    world: str
    arm: Arm
    seed: int


class Measured(NamedTuple):
    """Each arm's deployments, as (world, seed, results)."""

    worlds: tuple[World, ...]
    size: Size
    seeds: int
    lived: dict[str, list[tuple[str, int, Lived]]]


def measure(
    sources: Sequence[Source],
    data: Path,
    arms: Sequence[Arm],
    size: Size,
    seeds: int,
    processes: int,
    progress: Progress,
) -> Measured:
    """Prepare the worlds, then run every arm in each world with each seed."""
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as name, ExitStack() as stack:
        stores, run = Path(name), _runner(processes, stack)
        names = run(partial(_prepare, data, stores), sources)
        worlds = tuple(kept(name, stores) for name in progress.track(names, len(sources), description="prepare"))
        jobs = [Job(world.name, arm, seed) for world in worlds for seed in range(seeds) for arm in arms]
        found = run(partial(_live, size, stores), jobs)
        found_of: dict[str, list[tuple[str, int, Lived]]] = {arm.name: [] for arm in arms}
        for job, one in zip(jobs, progress.track(found, len(jobs), description="live"), strict=True):
            found_of[job.arm.name].append((job.world, job.seed, one))
    return Measured(worlds, size, seeds, found_of)


def _prepare(data: Path, stores: Path, source: Source) -> str:
    folder = stores / f"{source.name} stores"
    folder.mkdir()
    with closing(open_embedder(EmbedderSettings(allow_download=False))) as embedder:
        keep(prepare(source, data, folder, CachingEmbedder(embedder)), stores)
    return source.name


_world = lru_cache(maxsize=1)(kept)
"""Reads a world, caching the last world in this process."""


def _live(size: Size, stores: Path, job: Job) -> Lived:
    return lived(_world(job.world, stores), job.arm, size, job.seed)


def _runner(processes: int, stack: ExitStack) -> Callable[..., Iterable[Any]]:
    """Return a function like `map` that uses `processes` worker processes, or this process if `processes` is 1."""
    if processes == 1:
        return map
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the matrices are small, and two processes' threads would compete
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool.map


def means(found: Sequence[tuple[str, int, Lived]], epoch: int, *, is_full: bool | None = None) -> dict[Key, Array]:
    """Return the mean values by kind and seed after an epoch, optionally only for answers that the user's own memories
    fill or do not fill (`is_full`).
    """
    of: dict[Key, list[Seen]] = {}
    for world, seed, one in found:
        for answer in one.answers:
            if answer.epoch == epoch and is_full in (None, answer.is_full):
                of.setdefault((world, answer.kind, seed), []).append(answer.figures)
    return {key: np.array(figures).mean(axis=0) for key, figures in of.items()}


def gain(after: Mapping[Key, Array], before: Mapping[Key, Array], world: str | None = None) -> dict[str, Difference]:
    """Return each value's mean difference and its interval, for one world or all worlds; NaN if there are no kinds."""
    keys = [key for key in after if key in before and world in (None, key[0])]
    if not keys:
        return dict.fromkeys(Seen._fields, Difference(mean=float("nan"), low=None, high=None))
    differences = np.array([after[key] - before[key] for key in keys])
    low, high = np.nanpercentile(_weights(keys) @ differences, (2.5, 97.5), axis=0)
    is_known = len({key[:2] for key in keys}) >= FEWEST
    return {
        name: Difference(
            mean=float(differences[:, column].mean()),
            low=float(low[column]) if is_known else None,
            high=float(high[column]) if is_known else None,
        )
        for column, name in enumerate(Seen._fields)
    }


def _weights(keys: Sequence[Key]) -> Array:
    """Return the weights (r, q) of q keys in r resamples. Each world's kinds and seeds are resampled.

    If a world has only one seed, every resample contains it.
    """
    random, weights = np.random.default_rng(SEED), np.ones((RESAMPLES, len(keys)))
    for world in dict.fromkeys(world for world, *_ in keys):
        places = [place for place, key in enumerate(keys) if key[0] == world]
        for part in (1, 2):
            units = {unit: number for number, unit in enumerate(dict.fromkeys(keys[place][part] for place in places))}
            drawn = random.multinomial(len(units), np.full(len(units), 1.0 / len(units)), RESAMPLES)
            weights[:, places] *= drawn[:, [units[keys[place][part]] for place in places]]
    totals: Array = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, totals, out=np.full_like(weights, np.nan), where=totals > 0.0)


class _Reader:
    """Derives the page's values from the results."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.last = measured.size.epochs

    def before(self, arm: str, *, is_full: bool | None = None) -> dict[Key, Array]:
        """Return the values before any report (loop off), which are equal in all arms with the same agent and place."""
        return means(self.measured.lived[arm], 0, is_full=is_full)

    def after(self, arm: str, *, is_full: bool | None = None, epoch: int | None = None) -> dict[Key, Array]:
        """Return the values after an epoch (default: the last epoch); arms with advance reports have only one epoch."""
        known = 0 if arm.startswith((ORACLE, RANDOM)) else self.last if epoch is None else epoch
        return means(self.measured.lived[arm], known, is_full=is_full)

    def searches(self, arm: str, epoch: int | None = None) -> list[Searched]:
        """Return an arm's searches after an epoch (default: the last epoch)."""
        every = [one for *_, found in self.measured.lived[arm] for one in found.searches]
        last = max(one.epoch for one in every) if epoch is None else epoch
        return [one for one in every if one.epoch == last]

    def proven(self, arm: str, which: str, epoch: int | None = None, world: str | None = None) -> float:
        """Return the share of the found items that are proven; `which` is `helpful`, `others` or `late`."""
        found = [one for name, _, one in self.measured.lived[arm] if world in (None, name)]
        last = max(search.epoch for one in found for search in one.searches) if epoch is None else epoch
        shares = [getattr(search, which) for one in found for search in one.searches if search.epoch == last]
        known = [share for share in shares if share is not None]
        return float(np.mean(known)) if known else float("nan")


def page(measured: Measured, machine: Mapping[str, str], now: datetime) -> str:
    """Return the contents of shared.md."""
    reader, agent, size = _Reader(measured), Agent(), measured.size
    described = "; ".join(f"{name}: {value}" for name, value in machine.items())
    head = _HEAD.format(
        date=now,
        machine=described,
        agent=agent,
        easy=_EASY,
        size=size,
        resamples=RESAMPLES,
        runs=size.requests,
        seeds=measured.seeds,
    )
    sections: Sequence[Callable[[_Reader], Iterator[str]]] = (
        _claims, _worlds, _first_answers, _by_world, _worse, _full, _lies, _places, _late, _scores, _priors,
    )  # fmt: skip
    return "\n".join([head, *(line for section in sections for line in section(reader)), _TAIL])


def _claims(reader: _Reader) -> Iterator[str]:
    """Yield the lines of the claims section; a claim holds if its interval's lower end is above 0."""
    off, on, control = reader.before(LOOP), reader.after(LOOP), reader.after(SHUFFLED)
    claims = {
        "success of first answers: loop minus loop off": gain(on, off),
        "success of first answers: loop minus shuffled": gain(on, control),
    }
    for world in reader.measured.worlds:
        claims[f"loop minus shuffled, {world.name}"] = gain(on, control, world.name)
    for arm in _LIES:
        claims[f"{arm} minus loop off"] = gain(reader.after(arm), off)
    claims["loop that ranks worse items last minus loop that does not"] = gain(on, reader.after(f"{LOOP}, {ALIKE}"))
    claims["loop with a reserved place minus loop without it"] = gain(on, reader.after(NO_PLACE))
    half, none = (reader.after(arm, is_full=True) for arm in (ORACLE, f"{ORACLE}, {NEW_ALONE}"))
    claims[
        "reserved place for proven and new items minus one for new items only, if the user's own memories fill the "
        "answer"
    ] = gain(half, none)
    yield "## Claims\n"
    yield "Each claim states that a difference in success is positive. It holds if the whole interval is above 0.\n"
    yield "| claim | difference | holds |"
    yield "|---|---|---|"
    for what, found in claims.items():
        yield _claim(what, found["success"])
    yield ""


def _claim(what: str, found: Difference) -> str:
    return f"| {what} | {_points(found)} | {'yes' if found.low is not None and found.low > 0 else 'NO'} |"


def _worlds(reader: _Reader) -> Iterator[str]:
    yield "## The worlds\n"
    yield "| | what helps | own memories | items | kinds | helpful items | look-alikes found | filled by own |"
    yield "|---" * 8 + "|"
    for world in reader.measured.worlds:
        helps = np.mean([len(kind.helps) for kind in world.kinds])
        found = np.mean([len(set(kind.found) - kind.helps) for kind in world.kinds])
        answers = [
            answer for name, _, one in reader.measured.lived[LOOP] if name == world.name for answer in one.answers
        ]
        full = np.mean([answer.is_full for answer in answers])
        kinds = f"{len(world.kinds)} of {world.candidates}"
        shares = f"{helps:.1f} | {found:.1f} | {full:.2f}"
        yield f"| {world.name} | {world.labels} | {len(world.owners)} | {len(world.items)} | {kinds} | {shares} |"
    absent = [source.name for source in SOURCES if source.name not in [world.name for world in reader.measured.worlds]]
    yield f"\nNot measured in this run: {', '.join(absent)}.\n" if absent else ""


def _first_answers(reader: _Reader) -> Iterator[str]:
    yield "## First answers of users who never used an item\n"
    yield "| | success | first shared item helps | one of five helps | helpful items proven | look-alikes proven |"
    yield "|---" * 6 + "|"
    off = reader.before(LOOP)
    base = np.array(list(off.values())).mean(axis=0)
    yield f"| loop off | {' | '.join(f'{100 * base[place]:.1f}' for place in range(3))} | .00 | .00 |"
    for arm in (LOOP, SHUFFLED, RANDOM, ORACLE):
        found = gain(reader.after(arm), off)
        shares = f"{reader.proven(arm, 'helpful'):.2f} | {reader.proven(arm, 'others'):.2f}"
        yield f"| {arm} | {' | '.join(_points(found[name]) for name in ('success', 'first', 'any'))} | {shares} |"
    over = gain(reader.after(LOOP), reader.after(SHUFFLED))
    yield f"| loop minus shuffled | {' | '.join(_points(over[name]) for name in ('success', 'first', 'any'))} | | |"
    yield "\n![success of first answers by epoch](shared.png)\n"


def _by_world(reader: _Reader) -> Iterator[str]:
    worlds = sorted(
        (world.name for world in reader.measured.worlds),
        key=lambda name: gain(reader.after(LOOP), reader.after(SHUFFLED), name)["success"].mean,
    )
    yield "## Success by data set, weakest first\n"
    yield f"| | {' | '.join(worlds)} |"
    yield "|---" * (len(worlds) + 1) + "|"
    off = reader.before(LOOP)
    base = [np.mean([figures[0] for (name, *_), figures in off.items() if name == world]) for world in worlds]
    yield f"| loop off | {' | '.join(f'{100 * mean:.1f}' for mean in base)} |"
    for arm in (LOOP, SHUFFLED, *_LIES, ORACLE):
        cells = [_points(gain(reader.after(arm), off, world)["success"]) for world in worlds]
        yield f"| {arm} | {' | '.join(cells)} |"
    shares = [f"{reader.proven(LOOP, 'helpful', world=world):.2f}" for world in worlds]
    yield f"| loop: helpful items proven | {' | '.join(shares)} |\n"
    yield "*Helpful proven* is the upper limit for figures that do not depend on the request."
    for world in worlds:
        most = gain(reader.after(ORACLE), off, world)["success"]
        if most.low is None or most.low <= 0.0:
            yield f"In {world}, even this limit shows no gain, so the loop cannot show one either."
    yield ""


def _worse(reader: _Reader) -> Iterator[str]:
    worlds = [world.name for world in reader.measured.worlds]
    yield "## Items that are worse than usual come after new items\n"
    yield "The table shows this rule's effect on success after the last epoch.\n"
    yield f"| | all | {' | '.join(worlds)} | without it, minus loop off |"
    yield "|---" * (len(worlds) + 3) + "|"
    for arm in (LOOP, INVERT, SIX, HUNDRED, BURYING):
        former = reader.after(f"{arm}, {ALIKE}")
        cells = [_points(gain(reader.after(arm), former, world)["success"]) for world in (None, *worlds)]
        cells.append(_points(gain(former, reader.before(LOOP))["success"]))
        yield f"| {arm} | {' | '.join(cells)} |"
    yield ""


def _full(reader: _Reader) -> Iterator[str]:
    yield "## Where the user's memories fill the answer\n"
    yield "Values are differences from the results with the loop off, for the same answers.\n"
    yield "| | full: success | full: one of five helps | not full: success | not full: one of five helps |"
    yield "|---" * 5 + "|"
    arms = (LOOP, ORACLE, f"{ORACLE}, {NEW_ALONE}")
    for arm in arms:
        cells = []
        for is_full in (True, False):
            found = gain(reader.after(arm, is_full=is_full), reader.before(LOOP, is_full=is_full))
            cells += [_points(found["success"]), _points(found["any"])]
        yield f"| {arm} | {' | '.join(cells)} |"
    yield ""


def _lies(reader: _Reader) -> Iterator[str]:
    yield "## Lies\n"
    yield "| | success minus loop off | minus honest loop | helpful proven | look-alikes proven |"
    yield "|---" * 5 + "|"
    for arm in (LOOP, *_LIES):
        over = gain(reader.after(arm), reader.before(LOOP))["success"]
        less = gain(reader.after(arm), reader.after(LOOP))["success"]
        shares = f"{reader.proven(arm, 'helpful'):.2f} | {reader.proven(arm, 'others'):.2f}"
        yield f"| {arm} | {_points(over)} | {'' if arm == LOOP else _points(less)} | {shares} |"
    early = reader.measured.size.asked_after[1]
    yield "\nEach key reports once, before any other user does:\n"
    yield f"| | at once | after {early} epochs | at the end | look-alikes proven at once | after {early} epochs |"
    yield "|---" * 6 + "|"
    for arm in (SIX, HUNDRED, BURYING):
        epochs = (0, early, reader.last)
        over = [_points(gain(reader.after(arm, epoch=epoch), reader.before(LOOP))["success"]) for epoch in epochs]
        praised = [f"{reader.proven(arm, 'others', epoch):.2f}" for epoch in epochs[:2]]
        yield f"| {arm} | {' | '.join([*over, *praised])} |"
    yield ""


def _places(reader: _Reader) -> Iterator[str]:
    yield "## The reserved place for shared items\n"
    yield "The table shows the effect of reserving one of five places.\n"
    yield "| | success | one of five helps | shared items shown |"
    yield "|---" * 4 + "|"
    for epoch, name in ((0, "before any report"), (reader.last, "at the end")):
        for is_full, which in ((None, "all"), (True, "the user's own memories fill the answer")):
            kept = reader.after(LOOP, is_full=is_full, epoch=epoch)
            found = gain(kept, reader.after(NO_PLACE, is_full=is_full, epoch=epoch))
            cells = [
                _points(found["success"]),
                _points(found["any"]),
                f"{found['places'].mean:+.2f}".replace("+nan", "-"),
            ]
            yield f"| {name}, {which} | {' | '.join(cells)} |"
    shares = [f"{reader.proven(arm, 'helpful'):.2f}" for arm in (LOOP, NO_PLACE)]
    yield f"\nHelpful items proven at the end: {shares[0]} with the reserved place, {shares[1]} without.\n"


def _late(reader: _Reader) -> Iterator[str]:
    size = reader.measured.size
    yield "## Good items published late\n"
    yield f"For each kind, one helpful item is published after epoch {size.late_at} of {size.epochs}.\n"
    epochs = [epoch for epoch in size.asked_after if epoch > size.late_at]
    yield f"| epochs since | {' | '.join(f'{epoch - size.late_at}: proven | shown | success' for epoch in epochs)} |"
    yield "|---" * (3 * len(epochs) + 1) + "|"
    for arm in (LATE, f"{LATE}, {NO_PLACE}"):
        cells = []
        for epoch in epochs:
            figures = np.array(list(reader.after(arm, epoch=epoch).values())).mean(axis=0)
            late, success = (100 * figures[Seen._fields.index(name)] for name in ("late", "success"))
            cells += [f"{reader.proven(arm, 'late', epoch):.2f}", f"{late:.0f} %", f"{success:.1f}"]
        yield f"| {arm} | {' | '.join(cells)} |"
    yield ""


def _scores(reader: _Reader) -> Iterator[str]:
    def first(arm: str, order: str, which: str, epoch: int | None = None) -> str:
        """Return the percentage of searches whose first item is `which`, after an epoch (by default the last)."""
        every = reader.searches(arm, epoch)
        return f"{100 * np.mean([getattr(one, which).get(order, False) for one in every]):.0f}"

    yield "## The order of a search\n"
    yield "Values are the percentages of searches (for shared items only) in which the first item helps, or is praised"
    yield f"by keys. The product uses the order *{AS_RELEASED}*. *At once* means that only the keys have reported.\n"
    keys = f"{SIX} at once: helps | praised | at the end: helps | praised | {BURYING} at once: praised"
    yield f"| | loop: helps | helpful proven: helps | {keys} |"
    yield "|---" * 8 + "|"
    for order in ORDERS:
        cells = [first(arm, order, "first") for arm in (LOOP, ORACLE)]
        cells += [first(SIX, order, which, epoch) for epoch in (0, None) for which in ("first", "praised")]
        cells.append(first(BURYING, order, "praised", 0))
        yield f"| {order} | {' | '.join(cells)} |"
    yield ""


def _priors(reader: _Reader) -> Iterator[str]:
    yield "## The prior\n"
    prior = SharedSettings().prior
    yield f"The prior is {prior}. In the easy deployment, most runs succeed, regardless of what they use.\n"
    yield "| | mean quality of reported runs | success minus loop off | helpful proven | look-alikes proven |"
    yield "|---" * 5 + "|"
    for arm in (LOOP, SHUFFLED, "easy", f"easy, prior {_EASY_PRIOR}"):
        quality = np.mean([one.quality for *_, one in reader.measured.lived[arm]])
        over = gain(reader.after(arm), reader.before(arm))["success"]
        shares = f"{reader.proven(arm, 'helpful'):.2f} | {reader.proven(arm, 'others'):.2f}"
        yield f"| {arm} | {quality:.2f} | {_points(over)} | {shares} |"
    yield ""


def _points(found: Difference) -> str:
    if np.isnan(found.mean):
        return "-"
    interval = (
        "" if found.low is None or found.high is None else f" ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    )
    return f"{100 * found.mean:+.1f}{interval}"


def draw(measured: Measured, file: Path) -> None:
    """Write a PNG plot of the gain in the success rate of first answers by epoch, compared with the loop off."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    reader = _Reader(measured)
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    epochs = measured.size.asked_after
    off = reader.before(LOOP)
    for place, arm in enumerate(_DRAWN):
        if arm == ORACLE:
            best = gain(reader.after(arm), off)["success"]
            axes.axhline(100 * best.mean, color="grey", linestyle="--", linewidth=1, label=arm)
            continue
        found = [gain(means(measured.lived[arm], epoch), off)["success"] for epoch in epochs]
        at = [epoch + 0.06 * (place - 1.5) for epoch in epochs]
        (line,) = axes.plot(at, [100 * one.mean for one in found], marker="o", markersize=4, label=arm)
        for where, one in zip(at, found, strict=True):
            if one.low is not None and one.high is not None:
                axes.vlines(where, 100 * one.low, 100 * one.high, colors=line.get_color(), alpha=0.6)
    axes.axhline(0.0, color="black", linewidth=1)
    axes.set_xlabel("epochs")
    axes.set_ylabel("gain in success of first answers (percentage points)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})


_HEAD = """\
# Value of reported outcomes for shared items

Written by `python -m ops.bench.shared_worth` on {date:%Y-%m-%d}. Texts, users' own memories, searches, figures,
releases and the merging of both tiers are real; the agent that reads an answer is simulated. Each data set has {seeds}
deployments of {size.epochs} epochs. In each epoch, each of {size.users} users makes {runs} requests, all of different
kinds (out of {size.kinds}). After each epoch, the runs are reported and the figures released. A further {size.others}
users, who have used no items, make each kind of request in a wording that nobody else uses. Values are percentages, and
differences are in percentage points. The 95 % intervals use {resamples:,} resamples. In each of these, whole kinds of
request and whole deployments of each data set are drawn independently (Owen 2007). The cost of searches and recalls is
in `results.md`.

The agent reads an answer from the top. With probability {agent.believes}, it uses a helpful memory, and with
probability {agent.mistakes}, any other memory; if it does not use a memory, it continues reading with probability
{agent.reads_on}. A run succeeds with probability {agent.helped} if it used a helpful memory, {agent.misled} if it used
any other memory, and {agent.alone} if it used no memory. In the easy deployment, these probabilities are {easy.helped},
{easy.misled} and {easy.alone}. A run's quality is 1 or 0. These numbers are assumptions, since no data set contains
runs that used shared items.

{machine}.
"""
_TAIL = """\
## What this shows, and what it does not

- *success* is the probability that a run succeeds, given the shown memories. *First shared item helps* and *one of five
  helps* do not depend on the agent. A user's own memories never help here, because the data contain no labels for them.
- *loop off* is the state before any report. In *shuffled*, the qualities of all runs of an epoch are permuted, so its
  gain shows the effect of showing and using items, not that of outcomes. In *helpful proven*, twenty users have
  reported the truth about every item, which gives an upper bound on the benefit of merging. In *others proven*, the
  same number of found items, chosen at random, are proven instead.
- In *praise*, liars agree on the first look-alike found for each kind, and report in each epoch that it was used
  successfully. In *invert*, they report the opposite of their runs' outcomes. *Keys* praise once, before anybody else
  reports; *burying keys* report that all other found items failed.
- Which items help is derived from the data: for LoCoMo and BEAM from the question's evidence, and for Airline from the
  reward of the run that the item describes (we assume that the item makes another run succeed). For SWE, a random third
  of the thoughts found for an issue are helpful. A kind is included only if a search finds a helpful item and two
  look-alikes; otherwise, the loop has nothing to reorder.
- BEAM's messages are truncated to 500 characters. For LoCoMo and BEAM, the wordings of a question are templates that
  contain it; for Airline they come from four customers, and for SWE they are the issue's title and description.
- The same users request the same kinds repeatedly. How soon an item is proven depends on how many users it has.
- Each deployment of a set uses the set's next kinds, with different runs and recall ids. All arms use the same kinds,
  runs and ids. The results of recalls and searches are computed once per text. Only figures change these results, and
  figures are applied in the same way as in the store (a test compares the two). Late items are in the index from the
  start, but hidden. Item ids are new in each run of the command, so random draws differ between runs.
- If the user's own memories fill the answer, shared items have only the reserved place, which the agent reads last. In
  such answers, outcomes can improve only a little, and an item proven for a different kind of request takes the
  reserved place in half of the recalls.
"""


def main(arguments: Sequence[str]) -> int:
    """Measure the data sets in the `--data` folder; write shared.md and shared.png."""
    parser = argparse.ArgumentParser(
        "python -m ops.bench.shared_worth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder that contains the data sets")
    given = parser.parse_args(arguments)
    there = [source for source in SOURCES if (given.data / source.place).exists()]
    if not there:
        parser.error(f"{given.data} contains none of {', '.join(source.place for source in SOURCES)}")
    with Progress(console=Console(stderr=True)) as progress:
        measured = measure(there, given.data, ARMS, Size(), SEEDS, os.cpu_count() or 1, progress)
    draw(measured, PAGE.with_suffix(".png"))
    PAGE.write_text(page(measured, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
