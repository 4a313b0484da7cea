"""Judges the answers to a data set's questions, to measure the effect and calibration of the relevance threshold.

Two groups of memories are judged: the evidence for a store's own questions, and all memories returned for other stores'
questions. Other memories returned for the store's own questions are not judged, since annotators mark only the minimal
evidence. Memories of unrelated stores are judged separately (`strange`).

Shapes: m judged memories, a answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memory_agent.evaluation import Question, event_id, filter_of
from memory_agent.memory import Memory
from memory_agent.records.memories import Mode

TOP_K = 10
_DEADLINE_MS = 600_000.0
_BINS = 10
_STEPS = 200
_MOST_LOGIT = 20.0

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Answered:
    """One answer: the relevance of its memories, which of them are evidence, and how much evidence the store has.

    `evidence` is 0 for other stores' questions. `is_strange` marks memories of unrelated stores.
    """

    relevance: Array
    is_evidence: Mask
    evidence: int
    is_strange: Mask | None = None

    @property
    def best(self) -> float:
        """The highest relevance of a memory, or -1 for an empty answer."""
        return float(self.relevance.max(initial=-1.0))


class Judged(NamedTuple):
    """The logits of the judged memories, whether they are evidence, and their weights; all (m,)."""

    logits: Array
    is_evidence: Mask
    weights: Array


class Reliability(NamedTuple):
    """The predicted relevance, observed relevance and share of memories in each bin, and the mean error."""

    said: Array
    seen: Array
    shares: Array
    error: float


@dataclass(frozen=True)
class Measured:
    """The answers for one data set, by table row."""

    name: str
    stores: int
    answers: dict[str, list[Answered]]

    def own(self, line: str) -> list[Answered]:
        """Return the answers to a store's own questions."""
        return [answer for answer in self.answers[line] if answer.evidence]

    def others(self, line: str) -> list[Answered]:
        """Return the answers to other stores' questions."""
        return [answer for answer in self.answers[line] if not answer.evidence]

    def kept(self, line: str, least: float) -> float:
        """Return the share of recall@10 that a threshold of `least` keeps."""
        parts = [(part.relevance[part.is_evidence], min(part.evidence, TOP_K)) for part in self.own(line)]
        found = sum(len(relevance) / evidence for relevance, evidence in parts)
        return sum(float((relevance >= least).sum()) / evidence for relevance, evidence in parts) / max(found, 1e-9)

    def refused(self, line: str, least: float) -> float:
        """Return the share of other stores' questions whose answer is empty at a threshold of `least`."""
        return float(np.mean([answer.best < least for answer in self.others(line)]))

    def shown(self, line: str, least: float) -> float:
        """Return the mean number of memories in the answer to one of the store's own questions, at a threshold of
        `least`.
        """
        return float(np.mean([(answer.relevance >= least).sum() for answer in self.own(line)]))

    def strange(self, line: str, least: float) -> float:
        """Return the share of the store's own questions answered with an unrelated store's memory, at a threshold of
        `least`.
        """
        parts = [(part.relevance, part.is_strange) for part in self.own(line) if part.is_strange is not None]
        reached = [bool((relevance[strange] >= least).any()) for relevance, strange in parts if strange.any()]
        return float(np.mean(reached)) if reached else float("nan")

    def area(self, line: str) -> float:
        """Return the AUC: the probability that the best memory for one of the store's own questions is more relevant
        than the best memory for another store's question.
        """
        own, others = (np.array([part.best for part in parts]) for parts in (self.own(line), self.others(line)))
        return float(np.mean((own[:, None] > others) + 0.5 * (own[:, None] == others)))

    def judged(self, line: str) -> Judged:
        """Return the judged memories. The store's own questions have a total weight of 1, as have all others."""
        parts = [(part, part.is_evidence if part.evidence else ~part.is_evidence) for part in self.answers[line]]
        parts = [(part, judged) for part, judged in parts if judged.any()]
        sizes = {own: sum(bool(part.evidence) == own for part, _ in parts) for own in (True, False)}
        relevance = np.concatenate([part.relevance[judged] for part, judged in parts])
        tiny = 1.0 / (1.0 + np.exp(_MOST_LOGIT))
        relevance = np.clip(relevance, tiny, 1.0 - tiny)
        return Judged(
            logits=np.log(relevance / (1.0 - relevance)),
            is_evidence=np.concatenate([part.is_evidence[judged] for part, judged in parts]),
            weights=np.concatenate(
                [np.full(judged.sum(), 1.0 / judged.sum() / sizes[bool(part.evidence)]) for part, judged in parts]
            ),
        )


def ask(
    memory: Memory,
    user_id: str,
    question: Question,
    mode: Mode,
    *,
    is_own: bool,
    strangers: Collection[str] | None = None,
) -> Answered:
    """Recall for a question from this store or another store; `strangers` are the ids of unrelated stores' items."""
    result = memory.recall(
        question.text,
        TOP_K,
        filter_of(question) if is_own else None,
        mode,
        _DEADLINE_MS,
        reference_time=question.asked_at,
        min_relevance=0.0,
    )
    relevant = {event_id(user_id, id_) for id_ in question.relevant} if is_own else set()
    strange = None if strangers is None else {event_id(user_id, id_) for id_ in strangers}
    known = [part for part in result.memories if part.relevance is not None]
    ids = [part.record.event_id for part in known]
    return Answered(
        relevance=np.array([part.relevance for part in known], dtype=np.float64),
        is_evidence=np.array([id_ in relevant for id_ in ids], dtype=np.bool_),
        evidence=len(relevant),
        is_strange=None if strange is None else np.array([id_ in strange for id_ in ids], dtype=np.bool_),
    )


def calibration(parts: Sequence[Judged]) -> tuple[float, float]:
    """Fit the slope and offset of the logits by Newton's method; return them (1 and 0 if calibrated)."""
    logits, seen, weights = (np.concatenate([part[place] for part in parts]) for place in range(3))
    design = np.stack([logits, np.ones(len(logits))])
    fitted = np.zeros(2)
    for _ in range(_STEPS):
        said = _share(fitted @ design)
        curvature = (design * (weights * said * (1.0 - said))) @ design.T + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, design @ (weights * (said - seen)))
        fitted -= step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-9:
            break
    return float(fitted[0]), float(fitted[1])


def reliability(judged: Judged, slope: float = 1.0, offset: float = 0.0) -> Reliability:
    """Compare predicted with observed relevance in ten bins."""
    said = _share(slope * judged.logits + offset)
    bins = np.minimum((said * _BINS).astype(int), _BINS - 1)
    weights = np.bincount(bins, judged.weights, _BINS)
    there = weights > 0
    means = [np.bincount(bins, judged.weights * part, _BINS)[there] / weights[there] for part in (said, judged[1])]
    shares = weights[there] / weights.sum()
    return Reliability(means[0], means[1], shares, float(shares @ np.abs(means[0] - means[1])))


def _share(logits: Array) -> Array:
    share: Array = 1.0 / (1.0 + np.exp(-np.clip(logits, -2 * _MOST_LOGIT, 2 * _MOST_LOGIT)))
    return share
