"""Measures what can be said of what follows runs: how far it agrees with how they ended, and how often by chance.

    python -m ops.bench.implicit FOLDER     some minutes; writes ops/bench/implicit.md

FOLDER has `airline_runs_dev.json`, `swe_runs_dev.json` and `locomo_dev.json`. Everything goes through the real
`Memory`: events in, upkeep, the runs' qualities out. How the runs ended is hidden from it: they are said to be
completed, or nothing is said, and what is inferred is compared with how they ended. No recorded data has users who
come back to a run after its end, so the page says of each table what it is made of.

The control of a table has the same events with their cause shuffled: who asks again, or how the later runs ended.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.embedders import open_embedder
from memory_agent.evaluation.compare import RESAMPLES, SEED
from memory_agent.evaluation.dataset import Question
from memory_agent.evaluation.locomo import read_locomo
from memory_agent.evaluation.metrics import distinct
from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, LearningSettings, RecallSettings
from ops.bench.machine import describe_machine
from ops.lab.airline import RecordedRun, events_of, read_airline
from ops.lab.gains import Difference, difference
from ops.lab.planning import RunFigures, figures_of
from ops.lab.stores import CachingEmbedder
from ops.lab.swe_runs import read_swe_runs

PAGE = Path(__file__).with_name("implicit.md")

Bools = npt.NDArray[np.bool_]
Events = list[dict[str, Any]]

_START = datetime(2025, 1, 6, tzinfo=UTC)
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)
_BATCH = 64
_SHUFFLES = 20
_SEEDS = 3
_MEMORIES = 50
_RUNS_OF_A_SESSION = 8
_APART = 10 * _MINUTE
ASKS_AFTER_FAILURE, ASKS_AFTER_SUCCESS = 0.6, 0.1
"""Of the simulated users: how many ask again. An assumption; nothing in the data says it."""

_HEAD = """\
# What follows a run

Written by `python -m ops.bench.implicit` on {date:%Y-%m-%d} (decision 0046). Through the real `Memory`; intervals are 95 % of
{resamples:,} resamples of whole tasks. AUC: how often a run that succeeded has a higher quality than one that failed; .5
says nothing. How the judged runs ended is hidden from the memory.

{machine}.
"""
_WITHIN = """
## Messages within a conversation (airline; real users' words, simulated by a language model)

The run is said to be completed at the agent's first answer; the customer's further messages follow, a minute apart. They
are turns of one dialogue and no reactions to a result, and the file has no times.
"""
_PAIRS = """
## A later run of the same request (airline and SWE; real runs, in an order they did not have)

Each run without a verdict, and an hour later in its session another run of its task with its verdict. The runs are
independent trials: that the two agree is owed to the task, easy or hard, and not to a user who tries again.
"""
_SIMULATED = """
## Simulated users (airline; real requests and endings, an assumed behaviour)

All 100 runs are said to be completed. Afterwards a user asks again in the words of another trial, after {failure:.0%} of
failures and {success:.0%} of successes, else goes on to another task: assumed, not measured. Each run's request is then
asked; `succeeded first` counts answers whose first run really succeeded, in points over a memory that infers nothing
from the same events. The control asks as often, whatever happened.
"""
_CHANCE = """
## By chance (LoCoMo; questions as completed runs, nobody comes back to any)

Questions of a conversation in random order, eight a session, ten minutes apart. A sign is false where the two
questions have no evidence in common.
"""


class Agreement(NamedTuple):
    """An AUC with its interval, that of the control, and on how many runs there was a sign of so many."""

    auc: float
    low: float
    high: float
    control: float
    signs: int
    runs: int


class Judged(NamedTuple):
    """A run whose ending was hidden: the quality that was inferred, whether there was a sign, its ending, its task."""

    quality: float
    has_sign: bool
    succeeded: bool
    task: str


def main() -> None:
    """Measure, and write the page."""
    folder = Path(sys.argv[1])
    airline = read_airline(folder / "airline_runs_dev.json").runs
    turns = user_turns(folder / "airline_runs_dev.json")
    swe = read_swe_runs(folder / "swe_runs_dev.json")
    conversations = [history.answerable for history in read_locomo(folder / "locomo_dev.json").histories]
    machine = "; ".join(f"{name}: {value}" for name, value in describe_machine().items())
    real = open_embedder(EmbedderSettings(allow_download=False))
    try:
        embedder = CachingEmbedder(real)
        lines = [_HEAD.format(date=datetime.now(UTC), machine=machine, resamples=RESAMPLES), _WITHIN, *_head()]
        lines.append(_row("asked again, or went on", agreement(within(airline, turns, embedder))))
        lines += [_PAIRS, *_head()]
        for name, runs in (("airline", airline), ("SWE", swe)):
            lines.append(_row(f"{name}, a later run", agreement(pairs(runs, embedder))))
            lines.append(_row(f"{name}, later endings shuffled", agreement(pairs(runs, embedder, seed=SEED))))
        lines += [_SIMULATED.format(failure=ASKS_AFTER_FAILURE, success=ASKS_AFTER_SUCCESS), *_simulated(airline, embedder)]
        lines += [_CHANCE, *_by_chance(conversations, embedder)]
    finally:
        real.close()
    PAGE.write_text("\n".join([*lines, ""]), encoding="utf-8")


def user_turns(file: Path) -> list[list[str]]:
    """Return what the customer said, for each run of the file."""
    ...
