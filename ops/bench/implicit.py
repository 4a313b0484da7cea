"""Measures how well the events after a run predict its outcome, against a control with shuffled causes.

    python -m ops.bench.implicit FOLDER     some minutes; writes ops/bench/implicit.md

FOLDER has `airline_runs_dev.json`, `swe_runs_dev.json` and `locomo_dev.json`. Everything goes through the real
`Memory`: events in, upkeep, the runs' qualities out. The recorded outcomes are withheld: a run ends as completed or
without an outcome, and the inferred quality is compared with the recorded one. No recorded data has users who come
back to a run after its end, so the page states the source of each table.

In a control the events are the same, but who asks again, or how the later runs ended, is shuffled.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedders import open_embedder
from memory_agent.evaluation import Question, distinct, read_locomo
from memory_agent.memory import Memory
from memory_agent.records.trajectories import SIGN_KINDS
from memory_agent.settings import EmbedderSettings, LearningSettings, RecallSettings
from ops.bench.machine import describe_machine
from ops.lab.airline import RecordedRun, events_of, read_airline
from ops.lab.gains import Difference, difference
from ops.lab.planning import RunFigures, figures_of
from ops.lab.stores import CachingEmbedder
from ops.lab.swe_runs import read_swe_runs

PAGE = Path(__file__).with_name("implicit.md")

Figures = npt.NDArray[np.float64]
Events = list[dict[str, Any]]

_START = datetime(2025, 1, 6, tzinfo=UTC)
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)
_BATCH = 64
_RESAMPLES = 1_000
_SHUFFLES = 5
_SEEDS = 3
_MEMORIES = 50
_RUNS_OF_A_SESSION = 8
_APART = 10 * _MINUTE
ASKS_AFTER_FAILURE, ASKS_AFTER_SUCCESS = 0.6, 0.1
"""Of the simulated users: how many ask again. An assumption; nothing in the data says it."""

_HEAD = """\
# What follows a run

Written by `python -m ops.bench.implicit` on {date:%Y-%m-%d} (decision 0017). Through the real `Memory`; intervals are
95 % of {resamples:,} resamples of whole tasks. AUC: how often a run that succeeded has a higher quality than one that
failed; .5 says nothing. How the judged runs ended is hidden from the memory.

{machine}.
"""
_WITHIN = """
## Messages within a conversation (airline; the customer is a language model)

The run is said to be completed at the agent's first answer; the customer's further messages follow, a minute apart.
They are turns of one dialogue, no reactions to a result, and the file has no times.
"""
_PAIRS = """
## A later run of the same request (airline and SWE; real runs, in an order they did not have)

Each run without a verdict, and an hour later in its session another run of its task with its verdict. The runs are
independent trials: that the two agree is owed to the task, easy or hard, and not to a user who tries again.
"""
_SIMULATED = """
## Simulated users (airline; real requests and endings, an assumed behaviour)

All 100 runs are said to be completed. Afterwards a user asks again in the words of another trial, after {failure:.0%}
of failures and {success:.0%} of successes, else goes on to another task: assumed, not measured. Each run's request is
then asked; `succeeded first` counts answers whose first run really succeeded, in points over a memory that infers
nothing from the same events (`with signs`). The control asks as often, whatever happened.
"""
_CHANCE = """
## By chance (LoCoMo; questions as completed runs, nobody comes back to any)

Questions of a conversation in random order, eight a session, ten minutes apart. A sign is false where the two
questions have no evidence in common.
"""


class Judged(NamedTuple):
    """A run whose ending was hidden: what was inferred, .5 or .8 without a sign, and how it ended."""

    quality: float
    has_sign: bool
    succeeded: bool
    task: str


class Simulated(NamedTuple):
    """What requests get (requests, figures) without what follows runs and with it, and what was inferred."""

    without: Figures
    counted: Figures
    judged: list[Judged]


class Agreement(NamedTuple):
    """The AUC of what was inferred, with its interval, and how many of the runs had a sign."""

    auc: float
    low: float
    high: float
    signs: int
    runs: int


class Chance(NamedTuple):
    """How many questions there were, and how many had a sign of each kind, in all and falsely."""

    questions: int
    found: Mapping[str, int]
    false: Mapping[str, int]


def main() -> None:
    """Measure, and write the page."""
    folder = Path(sys.argv[1])
    airline = read_airline(folder / "airline_runs_dev.json").runs
    swe = read_swe_runs(folder / "swe_runs_dev.json")
    histories = read_locomo(folder / "locomo_dev.json").histories
    machine = "; ".join(f"{name}: {value}" for name, value in describe_machine().items())
    real = open_embedder(EmbedderSettings(allow_download=False))
    try:
        embedder = CachingEmbedder(real)
        lines = [_HEAD.format(date=datetime.now(UTC), machine=machine, resamples=_RESAMPLES), _WITHIN, *_COLUMNS]
        turns = user_turns(folder / "airline_runs_dev.json")
        lines.append(_row("asked again, or went on", agreement(within(airline, turns, embedder))))
        lines += [_PAIRS, *_COLUMNS]
        for name, runs in (("airline", airline), ("SWE", swe)):
            lines.append(_row(name, agreement(pairs(runs, embedder))))
            shuffled = [one for seed in range(_SHUFFLES) for one in pairs(runs, embedder, seed)]
            lines.append(_row(f"{name}, endings of the later runs shuffled", agreement(shuffled)))
        lines += [
            _SIMULATED.format(failure=ASKS_AFTER_FAILURE, success=ASKS_AFTER_SUCCESS),
            *_simulated(airline, embedder),
        ]
        lines += [_CHANCE, *_by_chance([history.answerable for history in histories], embedder)]
    finally:
        real.close()
    PAGE.write_text("\n".join([*lines, ""]), encoding="utf-8")


def user_turns(file: Path) -> list[list[str]]:
    """Return what the customer said in each run of the airline's file, in order."""
    entries = msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
    said = ([one["content"] for one in entry["messages"] if one["role"] == "user"] for entry in entries)
    return [[text.replace("###STOP###", "").strip() for text in texts if text] for texts in said]


def within(runs: Sequence[RecordedRun], turns: Sequence[Sequence[str]], embedder: CachingEmbedder) -> list[Judged]:
    """Return the airline's runs with what their customers' further messages say."""
    events: Events = []
    for number, (run, texts) in enumerate(zip(runs, turns, strict=True)):
        at, session = _START + number * _DAY, f"conversation-{number}"
        events += _completed(run.run_id, session, run.request, at)
        further = enumerate(filter(None, texts[1:]), 1)
        events += [_message(f"{session}-{place}", session, text, at + place * _MINUTE) for place, text in further]
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as folder, _open(Path(folder), embedder) as memory:
        _take(memory, events)
        return [_judged(memory, run.run_id, run, 0.8) for run in runs]


def pairs(runs: Sequence[RecordedRun], embedder: CachingEmbedder, seed: int | None = None) -> list[Judged]:
    """Return each run of a task, ending hidden, followed by each other one; `seed` shuffles the endings of these."""
    couples = [(one, other) for one in runs for other in runs if one.task == other.task and one is not other]
    endings = [later.succeeded for _, later in couples]
    if seed is not None:
        endings = np.random.default_rng(seed).permutation(endings).tolist()
    events: Events = []
    for number, ((run, later), succeeded) in enumerate(zip(couples, endings, strict=True)):
        at, session = _START + number * 2 * _DAY, f"pair-{number}"
        events += _completed(f"{session}-first", session, run.request, at)[:1]
        events += _completed(f"{session}-later", session, later.request, at + 60 * _MINUTE, failed=not succeeded)
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as folder, _open(Path(folder), embedder) as memory:
        _take(memory, events)
        return [_judged(memory, f"pair-{number}-first", run, 0.5) for number, (run, _) in enumerate(couples)]


def agreement(judged: Sequence[Judged]) -> Agreement:
    """Return how far what was inferred agrees with how the runs ended."""
    qualities = np.array([one.quality for one in judged])
    succeeded = np.array([one.succeeded for one in judged])
    _, tasks = np.unique([one.task for one in judged], return_inverse=True)
    better = np.sign(qualities[succeeded][:, None] - qualities[~succeeded][None, :]) / 2 + 0.5
    random, count = np.random.default_rng(0), int(tasks.max()) + 1
    drawn = [np.bincount(random.integers(count, size=count), minlength=count)[tasks] for _ in range(_RESAMPLES)]
    found = [_auc(better, weights[succeeded], weights[~succeeded]) for weights in drawn]
    low, high = np.nanquantile(found, (0.025, 0.975))
    ones = np.ones(len(judged), dtype=np.int64)
    signs = sum(one.has_sign for one in judged)
    return Agreement(_auc(better, ones[succeeded], ones[~succeeded]), float(low), float(high), signs, len(judged))


def simulated(runs: Sequence[RecordedRun], embedder: CachingEmbedder, seed: int, *, control: bool) -> Simulated:
    """Return what simulated users change.

    In the control users ask again after as many runs, whatever their ending.
    """
    random = np.random.default_rng(seed)
    shares = np.array([ASKS_AFTER_SUCCESS if run.succeeded else ASKS_AFTER_FAILURE for run in runs])
    asks = random.random(len(runs)) < (shares.mean() if control else shares)
    events: Events = []
    for place, number in enumerate(random.permutation(len(runs)).tolist()):
        run, at = runs[number], _START + place * _DAY / 12
        told = events_of(msgspec.structs.replace(run, succeeded=True), "user", at)
        like = [other for other in runs if (other.task == run.task) == asks[number] and other is not run]
        after = datetime.fromisoformat(told[-1]["timestamp"]) + 3 * _MINUTE
        text = like[int(random.integers(len(like)))].request
        events += [*told, _message(f"after-{run.run_id}", run.run_id, text, after)]
    now = _START + (len(runs) + 1) * _DAY / 12
    with tempfile.TemporaryDirectory(prefix="memory-bench-") as folder:
        with _open(Path(folder), embedder, implicit=False) as memory:
            _take(memory, events)
            without = _asked(memory, runs, now)
        with _open(Path(folder), embedder) as memory:
            _take(memory, [])
            judged = [_judged(memory, run.run_id, run, 0.8) for run in runs]
            return Simulated(without, _asked(memory, runs, now), judged)


def by_chance(conversations: Sequence[Sequence[Question]], embedder: CachingEmbedder) -> Chance:
    """Return the signs of questions that follow each other by chance."""
    found: Counter[str] = Counter()
    false: Counter[str] = Counter()
    for number, questions in enumerate(conversations):
        order = np.random.default_rng(number).permutation(len(questions)).tolist()
        asked = {str(place): questions[chosen] for place, chosen in enumerate(order)}
        events: Events = []
        for name, question in asked.items():
            session, at = f"session-{int(name) // _RUNS_OF_A_SESSION}", _START + int(name) * _APART
            events.append(_message(f"asked-{name}", session, question.text, at))
            events += _completed(f"run-{name}", session, question.text, at + _MINUTE)
        with tempfile.TemporaryDirectory(prefix="memory-bench-") as folder, _open(Path(folder), embedder) as memory:
            _take(memory, events)
            for name, question in asked.items():
                run = memory.runs.get(f"run-{name}")
                for sign in () if run is None else run.implicit:
                    (record,) = memory.get([sign.record_id or ""])
                    other = asked[(record.event_id or "").split("-")[1]]
                    found[sign.kind] += 1
                    false[sign.kind] += not question.relevant.keys() & other.relevant.keys()
    return Chance(sum(map(len, conversations)), found, false)


def _simulated(runs: Sequence[RecordedRun], embedder: CachingEmbedder) -> Iterator[str]:
    yield "| users | AUC | runs with a sign | succeeded first | with signs | same task first | with signs |"
    yield "|---" * 7 + "|"
    first, same = RunFigures._fields.index("succeeded_1"), RunFigures._fields.index("same_task_1")
    tasks = [str(run.task) for run in runs] * _SEEDS
    for name, control in (("as assumed", False), ("control", True)):
        told = [simulated(runs, embedder, seed, control=control) for seed in range(_SEEDS)]
        without, counted = (np.concatenate(figures) for figures in zip(*(one[:2] for one in told), strict=True))
        gains, off = difference(counted - without, tasks), 100 * without.mean(axis=0)
        inferred = _row(name, agreement([judged for one in told for judged in one.judged]))
        yield f"{inferred} {off[first]:.1f} | {_points(gains[first])} | {off[same]:.1f} | {_points(gains[same])} |"


def _by_chance(conversations: Sequence[Sequence[Question]], embedder: CachingEmbedder) -> Iterator[str]:
    told = by_chance(conversations, embedder)
    yield f"| sign | of {told.questions} questions | falsely |\n|---|---|---|"
    for kind in SIGN_KINDS:
        yield f"| {kind.replace('_', ' ')} | {told.found.get(kind, 0)} | {told.false.get(kind, 0)} |"


_COLUMNS = ("| signs | AUC | runs with a sign |", "|---|---|---|")


def _row(name: str, found: Agreement) -> str:
    return f"| {name} | {found.auc:.2f} ({found.low:.2f} to {found.high:.2f}) | {found.signs} of {found.runs} |"


def _points(gain: Difference) -> str:
    interval = "" if gain.low is None or gain.high is None else f" ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    return f"{100 * gain.mean:+.1f}{interval}"


def _auc(better: Figures, ups: npt.NDArray[np.int64], downs: npt.NDArray[np.int64]) -> float:
    """Return the weighted share of pairs (successes, failures) in which the success is the better one."""
    total = float(ups.sum()) * float(downs.sum())
    return float(ups @ better @ downs) / total if total else float("nan")


def _judged(memory: Memory, run_id: str, run: RecordedRun, usual: float) -> Judged:
    found = memory.runs.get(run_id)
    implicit = None if found is None else found.implicit_quality
    return Judged(usual if implicit is None else implicit, implicit is not None, run.succeeded, str(run.task))


def _asked(memory: Memory, runs: Sequence[RecordedRun], now: datetime) -> Figures:
    """Return the figures of each run's request (requests, figures), asked in its name."""
    by_id = {run.run_id: run for run in runs}
    figures = []
    for run in runs:
        result = memory.recall(
            run.request, _MEMORIES, by_run=run.run_id, now=now, min_relevance=0.0, deadline_ms=60_000
        )
        recalled = distinct(found.record.run_id for found in result.memories if found.record.run_id is not None)
        figures.append(figures_of([by_id[run_id] for run_id in recalled], run.task))
    return np.array(figures, dtype=np.float64)


def _take(memory: Memory, events: Events) -> None:
    """Ingest, then infer until nothing changes."""
    now = max((datetime.fromisoformat(event["timestamp"]) for event in events), default=_START + 1_000 * _DAY) + _DAY
    for start in range(0, len(events), _BATCH):
        memory.ingest(events[start : start + _BATCH], now=now)
    while memory.sona.consolidate(now):
        pass


def _completed(run_id: str, session: str, request: str, at: datetime, *, failed: bool = False) -> Events:
    """Return the begin and the end of a run, half a minute apart."""
    end, key = ("failed", "error") if failed else ("completed", "summary")
    payloads = ((0, "started", {"objective": request}), (1, end, {key: "Nothing more is said of the end of this run"}))
    return [
        {
            "event_id": f"{run_id}-{place}",
            "event_type": f"conductor.run.{name}",
            "timestamp": (at + place * _MINUTE / 2).isoformat(),
            "user_id": "user",
            "session_id": session,
            "payload": payload | {"run_id": run_id},
        }
        for place, name, payload in payloads
    ]


def _message(event_id: str, session: str, text: str, at: datetime) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "event_type": "chat.user_msg",
        "timestamp": at.isoformat(),
        "user_id": "user",
        "session_id": session,
        "payload": {"text": text},
    }


def _open(folder: Path, embedder: CachingEmbedder, *, implicit: bool = True) -> Memory:
    return Memory.open(
        folder / "user",
        embedder=embedder,
        recall_settings=RecallSettings(echo_minutes=0.0),
        learning_settings=LearningSettings(patterns=False, implicit=implicit),
    )


if __name__ == "__main__":
    main()
