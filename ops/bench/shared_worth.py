"""Measures whether the coordination loop raises the success of first answers for users who never used a shared item.

    python -m ops.bench.shared_worth --data FOLDER     ten minutes on two cores; writes ops/bench/shared.md, shared.png

FOLDER has `locomo_dev.json`, `beam_dev/`, `airline_runs_dev.json` and `swe_runs_dev.json`, or some of them. The worlds
are of `shared_worlds`, the deployments of `shared_deployment`: real memories, items, recalls, reports and releases;
simulated is how an agent reads an answer. Before the first report every arm is the deployment with the loop off.

Intervals are 95 % of resamples of whole kinds of request: those of a kind share items, users and seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.evaluation.compare import RESAMPLES
from memory_agent.settings import EmbedderSettings, SharedSettings
from ops.bench.machine import describe_machine
from ops.bench.shared_deployment import Agent, Arm, Figures, Lived, Searched, Size, lived
from ops.bench.shared_worlds import KINDS, SOURCES, Source, World, prepare
from ops.lab.gains import Difference, difference
from ops.lab.stores import CachingEmbedder

PAGE = Path(__file__).with_name("shared.md")

_EASY = Agent(helped=0.95, misled=0.75, alone=0.8)
_EASY_PRIOR = 0.85
LOOP, SHUFFLED, ORACLE, RANDOM = "loop", "shuffled", "helpful proven", "others proven"
NO_PLACE, NEW_ALONE, LATE = "no place kept", "place for new items alone", "late items"
ARMS = (
    Arm(LOOP),
    Arm(SHUFFLED, reports="shuffled"),
    Arm(RANDOM, proven="random"),
    Arm(ORACLE, proven="helpful"),
    Arm("10 % praise", lie="praise", liars=0.1),
    Arm("10 % invert", lie="invert", liars=0.1),
    Arm("20 % praise", lie="praise", liars=0.2),
    Arm("six keys", sybils=True),
    Arm(NO_PLACE, has_place=False),
    Arm(LATE, late=True),
    Arm(f"{LATE}, {NO_PLACE}", late=True, has_place=False),
    Arm(f"{ORACLE}, {NEW_ALONE}", proven="helpful", proven_share=0.0),
    Arm("easy", agent=_EASY),
    Arm(f"easy, prior {_EASY_PRIOR}", agent=_EASY, prior=_EASY_PRIOR),
)
_LIES = ("10 % praise", "10 % invert", "20 % praise", "six keys")
_DRAWN = (LOOP, SHUFFLED, "10 % praise", "six keys", ORACLE)
_INCHES, _DOTS_PER_INCH = (7.5, 4.5), 110

Array = npt.NDArray[np.float64]
Key = tuple[str, str]
"""A world and a kind of request."""


class Job(NamedTuple):
    """One deployment."""

    world: int
    arm: Arm
    seed: int


class Measured(NamedTuple):
    """What the deployments of each arm gave, by world and seed."""

    worlds: tuple[World, ...]
    size: Size
    lived: dict[str, list[tuple[str, Lived]]]


def measure(
    sources: Sequence[Source],
    data: Path,
    arms: Sequence[Arm],
    size: Size,
    processes: int,
    progress: Progress,
    *,
    kinds: int = KINDS,
    seeds: int = 1,
) -> Measured:
    """Prepare the worlds with so many kinds each, and live every arm in each of them under each seed."""
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as name, ExitStack() as stack:
        stores, run = Path(name), _runner(processes, stack)
        made = run(partial(_prepare, data, stores, kinds), sources)
        worlds = tuple(progress.track(made, len(sources), description="prepare"))
        jobs = [Job(world, arm, seed) for world in range(len(worlds)) for arm in arms for seed in range(seeds)]
        found = run(partial(_live, worlds, size, stores), jobs)
        found_of: dict[str, list[tuple[str, Lived]]] = {arm.name: [] for arm in arms}
        for job, one in zip(jobs, progress.track(found, len(jobs), description="live"), strict=True):
            found_of[job.arm.name].append((worlds[job.world].name, one))
    return Measured(worlds, size, found_of)


def _prepare(data: Path, stores: Path, kinds: int, source: Source) -> World:
    (stores / source.name).mkdir()
    return prepare(source, data, stores / source.name, _embedder(), kinds)


def _live(worlds: Sequence[World], size: Size, stores: Path, job: Job) -> Lived:
    world = worlds[job.world]
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as folder:
        return lived(world, job.arm, size, job.seed, stores / world.name, Path(folder), _embedder())


_opened: list[Embedder] = []
"""The embedder of this process, which has a cache."""


def _embedder() -> Embedder:
    if not _opened:
        _opened.append(CachingEmbedder(open_embedder(EmbedderSettings(allow_download=False))))
    return _opened[0]


def _runner(processes: int, stack: ExitStack) -> Callable[..., Iterable[Any]]:
    """Return a `map` over processes, each with a model of its own, or in this process for one."""
    if processes == 1:
        return map
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # matrices are small here, and threads of two processes compete
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool.map


def means(found: Sequence[tuple[str, Lived]], epoch: int, *, is_full: bool | None = None) -> dict[Key, Array]:
    """Return the mean figures of each kind after an epoch, of the answers that the own memories fill or not."""
    of: dict[Key, list[Figures]] = {}
    for world, one in found:
        for answer in one.answers:
            if answer.epoch == epoch and is_full in (None, answer.is_full):
                of.setdefault((world, answer.kind), []).append(answer.figures)
    return {key: np.array(figures).mean(axis=0) for key, figures in of.items()}


def gain(after: Mapping[Key, Array], before: Mapping[Key, Array], world: str | None = None) -> dict[str, Difference]:
    """Return the differences of the figures, in all worlds or one, with intervals over kinds; NaN without any kind."""
    keys = [key for key in after if key in before and world in (None, key[0])]
    if not keys:
        return dict.fromkeys(Figures._fields, Difference(mean=float("nan"), low=None, high=None))
    found = difference(np.array([after[key] - before[key] for key in keys]), ["/".join(key) for key in keys])
    return dict(zip(Figures._fields, found, strict=True))


class _Reader:
    """Reads what was measured."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.last = measured.size.epochs

    def before(self, arm: str, *, is_full: bool | None = None) -> dict[Key, Array]:
        """Return the figures with the loop off: those of all arms of the same agent and place, before any report."""
        return means(self.measured.lived[arm], 0, is_full=is_full)

    def after(self, arm: str, *, is_full: bool | None = None, epoch: int | None = None) -> dict[Key, Array]:
        """Return the figures after the last epoch; those of arms with a proof in advance have one epoch."""
        known = 0 if arm.startswith((ORACLE, RANDOM)) else self.last if epoch is None else epoch
        return means(self.measured.lived[arm], known, is_full=is_full)

    def searches(self, arm: str) -> list[Searched]:
        """Return the searches after the last epoch."""
        every = [one for _, found in self.measured.lived[arm] for one in found.searches]
        return [one for one in every if one.epoch == max(other.epoch for other in every)]

    def proven(self, arm: str, which: str, epoch: int | None = None) -> float:
        """Return the share of the items found that is proven: `helpful`, `others` or `late` ones."""
        every = [one for _, found in self.measured.lived[arm] for one in found.searches]
        last = max(one.epoch for one in every) if epoch is None else epoch
        shares = [getattr(one, which) for one in every if one.epoch == last]
        known = [share for share in shares if share is not None]
        return float(np.mean(known)) if known else float("nan")


def page(measured: Measured, machine: Mapping[str, str], now: datetime) -> str:
    """Return the page as Markdown."""
    reader, agent, size = _Reader(measured), Agent(), measured.size
    described = "; ".join(f"{name}: {value}" for name, value in machine.items())
    head = _HEAD.format(
        date=now, machine=described, agent=agent, easy=_EASY, size=size, resamples=RESAMPLES, runs=size.requests
    )
    sections: Sequence[Callable[[_Reader], Iterator[str]]] = (
        _claims, _worlds, _first_answers, _by_world, _full, _lies, _places, _late, _scores, _priors,
    )  # fmt: skip
    return "\n".join([head, *(line for section in sections for line in section(reader)), _TAIL])


def _claims(reader: _Reader) -> Iterator[str]:
    """Yield what was claimed, and whether the lower end of the interval bears it."""
    off, on, control = reader.before(LOOP), reader.after(LOOP), reader.after(SHUFFLED)
    claims = {
        "the loop raises the success of first answers over the loop off": gain(on, off),
        "and over the shuffled control": gain(on, control),
    }
    for world in reader.measured.worlds:
        claims[f"and over the shuffled control, {world.name}"] = gain(on, control, world.name)
    for arm in _LIES:
        claims[f"it still does over the loop off, {arm}"] = gain(reader.after(arm), off)
    claims["a place kept for shared items raises it"] = gain(on, reader.after(NO_PLACE))
    full = (reader.after(arm, is_full=True) for arm in (ORACLE, f"{ORACLE}, {NEW_ALONE}"))
    claims["half of that place for proven items does, where own memories fill the answer"] = gain(*full)
    yield "## Claims\n"
    yield "A claim about success holds where the whole interval is above 0.\n"
    yield "| claim | points | holds |"
    yield "|---|---|---|"
    for what, found in claims.items():
        yield _claim(what, found["success"])
    yield ""


def _claim(what: str, found: Difference) -> str:
    return f"| {what} | {_points(found)} | {'yes' if found.low is not None and found.low > 0 else 'NO'} |"


def _worlds(reader: _Reader) -> Iterator[str]:
    yield "## The worlds\n"
    yield "| | what helps | own memories | items | kinds | items that help | look-alikes found | own fill the answer |"
    yield "|---" * 8 + "|"
    for world in reader.measured.worlds:
        helps = np.mean([len(kind.helps) for kind in world.kinds])
        found = np.mean([len(set(kind.found) - kind.helps) for kind in world.kinds])
        answers = [answer for name, one in reader.measured.lived[LOOP] if name == world.name for answer in one.answers]
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
    yield f"| loop less shuffled | {' | '.join(_points(over[name]) for name in ('success', 'first', 'any'))} | | |"
    yield "\n![success of first answers by epoch](shared.png)\n"


def _by_world(reader: _Reader) -> Iterator[str]:
    worlds = sorted(
        (world.name for world in reader.measured.worlds),
        key=lambda name: gain(reader.after(LOOP), reader.after(SHUFFLED), name)["success"].mean,
    )
    yield "## Success by data set, the weakest first\n"
    yield f"| | {' | '.join(worlds)} |"
    yield "|---" * (len(worlds) + 1) + "|"
    off = reader.before(LOOP)
    base = [np.mean([figures[0] for (name, _), figures in off.items() if name == world]) for world in worlds]
    yield f"| loop off | {' | '.join(f'{100 * mean:.1f}' for mean in base)} |"
    for arm in (LOOP, SHUFFLED, *_LIES, ORACLE):
        cells = [_points(gain(reader.after(arm), off, world)["success"]) for world in worlds]
        yield f"| {arm} | {' | '.join(cells)} |"
    yield ""


def _full(reader: _Reader) -> Iterator[str]:
    yield "## Where own memories fill the answer\n"
    yield "Points over the loop off, of the same answers.\n"
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
    yield "| | success over the loop off | less the honest loop | helpful proven | look-alikes proven |"
    yield "|---" * 5 + "|"
    for arm in (LOOP, *_LIES):
        over = gain(reader.after(arm), reader.before(LOOP))["success"]
        less = gain(reader.after(arm), reader.after(LOOP))["success"]
        shares = f"{reader.proven(arm, 'helpful'):.2f} | {reader.proven(arm, 'others'):.2f}"
        yield f"| {arm} | {_points(over)} | {'' if arm == LOOP else _points(less)} | {shares} |"
    early = reader.measured.size.asked_after[1]
    shares = [reader.proven("six keys", "others", epoch) for epoch in (0, early)]
    at_once = gain(means(reader.measured.lived["six keys"], 0), reader.before(LOOP))["success"]
    yield f"\nSix keys that praise before anybody else reports prove {shares[0]:.2f} of the look-alikes at once, which"
    yield f"changes success by {_points(at_once)} points; after {early} epochs {shares[1]:.2f} are proven.\n"


def _places(reader: _Reader) -> Iterator[str]:
    yield "## The place for shared items\n"
    yield "What the place of five costs and brings: with it less without it.\n"
    yield "| | success | one of five helps | shared items shown |"
    yield "|---" * 4 + "|"
    for epoch, name in ((0, "before any report"), (reader.last, "at the end")):
        for is_full, which in ((None, "all"), (True, "own memories fill the answer")):
            kept = reader.after(LOOP, is_full=is_full, epoch=epoch)
            found = gain(kept, reader.after(NO_PLACE, is_full=is_full, epoch=epoch))
            cells = [
                _points(found["success"]),
                _points(found["any"]),
                f"{found['places'].mean:+.2f}".replace("+nan", "-"),
            ]
            yield f"| {name}, {which} | {' | '.join(cells)} |"
    shares = [f"{reader.proven(arm, 'helpful'):.2f}" for arm in (LOOP, NO_PLACE)]
    yield f"\nHelpful items proven at the end: {shares[0]} with the place, {shares[1]} without.\n"


def _late(reader: _Reader) -> Iterator[str]:
    size = reader.measured.size
    yield "## A good item that comes late\n"
    yield f"Of each kind one item that helps is published after epoch {size.late_at} of {size.epochs}.\n"
    epochs = [epoch for epoch in size.asked_after if epoch > size.late_at]
    yield f"| epochs since | {' | '.join(f'{epoch - size.late_at}: proven | shown | success' for epoch in epochs)} |"
    yield "|---" * (3 * len(epochs) + 1) + "|"
    for arm in (LATE, f"{LATE}, {NO_PLACE}"):
        cells = []
        for epoch in epochs:
            figures = np.array(list(reader.after(arm, epoch=epoch).values())).mean(axis=0)
            late, success = (100 * figures[Figures._fields.index(name)] for name in ("late", "success"))
            cells += [f"{reader.proven(arm, 'late', epoch):.2f}", f"{late:.0f} %", f"{success:.1f}"]
        yield f"| {arm} | {' | '.join(cells)} |"
    yield ""


def _scores(reader: _Reader) -> Iterator[str]:
    yield "## What .05 changes in a search\n"
    yield "Of 100 searches of the items alone, those whose first item helps. Moved: what was added changed the first.\n"
    yield "| | without | as released | all .05 for every proven item | proven items first | moved |"
    yield "|---" * 6 + "|"
    for arm in (LOOP, ORACLE):
        found = reader.searches(arm)
        names = ("plain", "first", "whole", "proven_first", "is_moved")
        shares = [100 * np.mean([getattr(one, name) for one in found]) for name in names]
        yield f"| {arm} | {' | '.join(f'{share:.0f}' for share in shares)} |"
    yield ""


def _priors(reader: _Reader) -> Iterator[str]:
    yield "## The prior\n"
    yield f"The prior is {SharedSettings().prior}. In the easy deployment runs go well whatever they use.\n"
    yield "| | mean quality of reported runs | success over the loop off | helpful proven | look-alikes proven |"
    yield "|---" * 5 + "|"
    for arm in (LOOP, SHUFFLED, "easy", f"easy, prior {_EASY_PRIOR}"):
        quality = np.mean([one.quality for _, one in reader.measured.lived[arm]])
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
    """Draw the success of first answers over the loop off, by epoch, to a PNG file."""
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
    axes.set_ylabel("success of first answers, points over the loop off")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Software": None})


_HEAD = """\
# What it is worth that runs report

Written by `python -m ops.bench.shared_worth` on {date:%Y-%m-%d}. Real memories, items, recalls, reports and releases;
simulated is the agent that reads an answer. {size.users} users make {runs} requests each in each of {size.epochs}
epochs; after an epoch their runs are reported and the figures released. {size.others} others, who use nothing, ask each
kind of request in words that nobody else uses. Points of 100; intervals are 95 % of {resamples:,} resamples of whole
kinds of request. Search and recall cost: `results.md`.

An agent reads from the top. It uses a memory that helps with {agent.believes}, another with {agent.mistakes}, and reads
on with {agent.reads_on}. A run that used what helps succeeds with {agent.helped}, one that used another memory with
{agent.misled}, one that used none with {agent.alone}; in the easy deployment with {easy.helped}, {easy.misled} and
{easy.alone}. Its quality is 1 or 0. These numbers are assumptions: no data set has runs that used shared items.

{machine}.
"""
_TAIL = """\
## What this shows, and what it does not

- *success* is the probability that the run succeeds, given what it is shown; *first shared item helps* and *one of five
  helps* do not depend on the agent. Own memories never help here: the data do not say that they do.
- *loop off*: nobody has reported yet. *shuffled*: the qualities of all runs of an epoch are permuted among them; what
  it gains is owed to being shown and used, not to outcomes. *helpful proven*: twenty users have reported the truth on
  every item, the most that the merge can make of it. *others proven*: as many items drawn from those found.
- *praise*: liars agree on the look-alike of each kind that is found first, and report it used and good in each epoch.
  *invert*: they report the opposite of how their runs ended. *six keys* praise, once, before anybody else reports.
- What helps comes from the data for LoCoMo and BEAM (evidence of the question) and Airline (reward of the run that the
  item tells of: that its account makes another run succeed is assumed). For SWE one in three of the thoughts on an
  issue that a search finds is drawn. Kinds are those of which a search finds an item that helps and two look-alikes;
  for other requests the loop has nothing to order.
- BEAM's messages are cut to 500 characters. The wordings of a LoCoMo or BEAM question are templates around it; those of
  Airline are four customers', those of SWE the title and the description of the issue.
- The same users asked the same kinds again and again: how fast an item is proven depends on how many users use it.
- Recall ids are random, so the rotation of new items varies from run to run, and with it what is proven by the end. The
  intervals are over kinds, not over such runs: that an arm with more liars does better is chance, and two arms that
  differ by less than that are not told apart.
- With own memories that fill the answer, one place is all that shared items have, and the agent reads it last: outcomes
  can raise little there, and whatever is proven for another kind of request takes it in half of the recalls.
"""


def main(arguments: Sequence[str]) -> int:
    """Measure the data sets of the given folder; write the page and the picture."""
    parser = argparse.ArgumentParser(
        "python -m ops.bench.shared_worth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the folder of the data sets")
    given = parser.parse_args(arguments)
    there = [source for source in SOURCES if (given.data / source.place).exists()]
    if not there:
        parser.error(f"{given.data} has none of {', '.join(source.place for source in SOURCES)}")
    with Progress(console=Console(stderr=True)) as progress:
        measured = measure(there, given.data, ARMS, Size(), os.cpu_count() or 1, progress)
    draw(measured, PAGE.with_suffix(".png"))
    PAGE.write_text(page(measured, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
