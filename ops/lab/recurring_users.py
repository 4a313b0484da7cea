"""Measures how often the gate opens within 20 and 50 runs for users with recurring work, and what they gain.

A user has six topics, each a question about one conversation. Four out of five runs ask about one of them, in varying
words; every fifth run asks something else. After 50 runs, the questions about the topics are asked in new words, along
with questions that were never asked. With shuffled citations the gate should not open: the share of users for whom it
does is the false-alarm rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from memory_agent.evaluation import History, Question
from memory_agent.memory import Memory
from ops.lab.arms import OFF, Arm, Signal
from ops.lab.course import Figures, Setup, course
from ops.lab.gains import METRICS, Array, Difference, difference

SIGNALS: tuple[Signal, ...] = ("cite", "shuffled cite")
RUNS, EARLY = 50, 20

_USERS = 4  # users per conversation and seed
_TOPICS = 6
_RECURRING = 0.8
_NEW_QUESTIONS = 20
_LEAST_QUESTIONS = 40
WORDINGS = (
    "{}",
    "Please tell me: {}",
    "Again: {}",
    "Once more, {}",
    "I need to know: {}",
    "Could you say {}",
    "Hi, {}",
    "Quick question: {}",
    "For today: {}",
)
LAST_WORDING = "As usual: {}"


@dataclass(frozen=True)
class UserJob:
    """One user, whose topics and runs are drawn from a history."""

    seed: int
    number: int
    history: History
    signal: Signal


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """One user's results after all runs.

    `opened_at` is the number of runs after which the gate first opened, or None if it never opened. `again` and `new`
    are the metrics for the topics and for new questions, each with the gate deciding and with learning off.
    """

    signal: Signal
    user: str
    credited: int
    opened_at: int | None
    again: tuple[tuple[Figures, Figures], ...]
    new: tuple[tuple[Figures, Figures], ...]


class RecurringSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals for one signal's users; `again` and `new` compare each metric with its value when learning is off."""

    signal: Signal
    users: int
    runs: int
    credited: float
    opened_early: int
    opened: int
    opened_at: tuple[int, ...]
    again: dict[str, Difference]
    new: dict[str, Difference]


def jobs(histories: Sequence[History], signals: Sequence[Signal], seeds: Iterable[int]) -> list[UserJob]:
    """Return the users to simulate, from conversations with enough questions."""
    long = [history for history in histories if len(history.answerable) >= _LEAST_QUESTIONS]
    return [
        UserJob(seed, place * _USERS + user, history, signal)
        for seed in seeds
        for place, history in enumerate(long)
        for user in range(_USERS)
        for signal in SIGNALS
        if signal in signals
    ]


def run_job(setup: Setup, job: UserJob) -> Lived:
    """Simulate one user's runs, then ask about the user's topics and ask new questions."""
    random = np.random.default_rng((job.seed, job.number, 5))
    questions = [job.history.answerable[place] for place in random.permutation(len(job.history.answerable))]
    topics, others = questions[:_TOPICS], questions[_TOPICS:]
    unasked, never_asked = others[:-_NEW_QUESTIONS], others[-_NEW_QUESTIONS:]
    asked = [*(_worded(topic, LAST_WORDING) for topic in topics), *never_asked]
    opened: list[int] = []

    def watch(taught: int, memory: Memory) -> None:
        if not opened and memory.sona.status().gate.state == "on":
            opened.append(taught)

    with course(setup, Arm(job.signal, job.signal, "auto", ()), job.history, random) as lived:
        status = lived.teach(_runs(topics, unasked, random), watch)
        learned = lived.ask(asked)
    with course(setup, Arm(OFF, None, "off", ()), job.history, random) as untaught:
        usual = untaught.ask(asked)
    both = [(learned[question.id], usual[question.id]) for question in asked]
    return Lived(
        signal=job.signal,
        user=job.history.user,
        credited=status.credited,
        opened_at=opened[0] if opened else None,
        again=tuple(both[:_TOPICS]),
        new=tuple(both[_TOPICS:]),
    )


def summarise(lived: Sequence[Lived]) -> list[RecurringSummary]:
    """Summarise the users by signal, resampling conversations for the intervals."""
    by_signal: dict[Signal, list[Lived]] = {}
    for one in lived:
        by_signal.setdefault(one.signal, []).append(one)
    return [_sum(signal, users) for signal, users in by_signal.items()]


def _sum(signal: Signal, users: Sequence[Lived]) -> RecurringSummary:
    opened = tuple(sorted(one.opened_at for one in users if one.opened_at is not None))
    return RecurringSummary(
        signal=signal,
        users=len(users),
        runs=RUNS,
        credited=sum(one.credited for one in users) / len(users),
        opened_early=sum(at <= EARLY for at in opened),
        opened=len(opened),
        opened_at=opened,
        again=_over_off([(one.user, *pair) for one in users for pair in one.again]),
        new=_over_off([(one.user, *pair) for one in users for pair in one.new]),
    )


def _over_off(answers: Sequence[tuple[str, Figures, Figures]]) -> dict[str, Difference]:
    learned: Array = np.array([figures for _, figures, _ in answers], dtype=np.float64)
    usual: Array = np.array([figures for _, _, figures in answers], dtype=np.float64)
    return dict(zip(METRICS, difference(learned - usual, [user for user, _, _ in answers]), strict=True))


def _runs(topics: Sequence[Question], others: Sequence[Question], random: np.random.Generator) -> list[Question]:
    runs = []
    for number in range(RUNS):
        topic, wording = topics[int(random.integers(len(topics)))], WORDINGS[int(random.integers(len(WORDINGS)))]
        is_recurring = random.random() < _RECURRING
        runs.append(_worded(topic, wording) if is_recurring else others[number % len(others)])
    return runs


def _worded(question: Question, wording: str) -> Question:
    return msgspec.structs.replace(question, text=wording.format(question.text))
