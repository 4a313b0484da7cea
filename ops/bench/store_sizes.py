"""Samples small stores from data sets, to check that relevance means the same in stores of any size.

There are three kinds. "a part" contains memories of one conversation, chat or project, including the evidence for some
of its questions. "apart" mixes this evidence with memories from other stores of all data sets, without sessions. "one
session" is the same mixture in a single session, like that of a user who talks about many topics. Each store is asked
the questions whose evidence it contains, an equal number of questions that it cannot answer, and questions about its
own conversation whose evidence was not sampled ("missing"). Some of these questions are answered by other memories.

Embeddings are taken from the full stores, so sampling does not embed texts.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from rich.progress import Progress

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.evaluation import Dataset, History, Item, Question
from memory_agent.evaluation.runs import Prepared, opener
from memory_agent.records.embedded import Embedded, embedded_text
from memory_agent.settings import Settings
from memory_agent.storage.archive import Archive
from memory_agent.storage.folders import user_folder
from ops.bench.judged_answers import Answered, Measured, ask
from ops.lab.stores import CachingEmbedder

T = TypeVar("T")

_SEED = 1
_USER = "dealt"
_EVIDENCE_SHARE = 0.6  # maximum share of evidence per store, unless a single question has more
_MOST_STRANGE = 6  # maximum number of other stores from which memories are taken
_BATCH = 64


class Size(NamedTuple):
    """A size: memories per store, number of stores, and maximum number of answerable questions per store."""

    memories: int
    stores: int
    questions: int


SIZES = (Size(1, 120, 1), Size(3, 60, 2), Size(10, 40, 5), Size(30, 20, 8), Size(100, 12, 12), Size(300, 6, 24))


class Mixture(NamedTuple):
    """A kind of store: whether it includes other stores' memories, and whether all memories are in one session."""

    name: str
    is_mixed: bool
    has_one_session: bool = False


MIXTURES = (Mixture("a part", False), Mixture("apart", True), Mixture("one session", True, has_one_session=True))


class Dealt(NamedTuple):
    """A small store: its items, the questions it can and cannot answer, and the ids of items from other stores."""

    items: tuple[Item, ...]
    own: tuple[Question, ...]
    others: tuple[Question, ...]
    missing: tuple[Question, ...]
    strangers: frozenset[str]


class Embeddings:
    """The embeddings of all texts, from the full stores."""

    def __init__(self) -> None:
        self.of: dict[str, Embedded] = {}

    def add(self, prepared: Prepared) -> None:
        """Add the embeddings of all memories in the stores."""
        for user_id, _ in prepared.plan.users():
            archive = Archive.open(user_folder(prepared.data_dir, user_id), prepared.plan.settings.store, "library")
            try:
                with archive.store.snapshot() as snapshot:
                    for row, record in snapshot.scan():
                        vector, words, passages = snapshot.vector(row), snapshot.words(row), snapshot.passages(row)
                        if vector is None or words is None:
                            continue
                        text, vectors = embedded_text(record), vector[None]
                        spans = np.array([[0, len(text)]], dtype=np.int32)
                        if passages is not None:
                            spans, vectors = passages[0], np.concatenate([vectors, passages[1]])
                        self.of[text] = Embedded(vectors, spans, words.bits, words.length)
            finally:
                archive.close()


def ask_small_stores(
    datasets: Mapping[str, Dataset], embeddings: Embeddings, progress: Progress, sizes: Sequence[Size]
) -> list[Measured]:
    """Sample small stores from each data set, and ask them their questions. Answers have keys such as "apart 10" and
    "apart 10 missing"."""
    model = open_embedder(Settings().embedder)
    embedder = CachingEmbedder(model, embeddings.of)
    try:
        found = []
        for name, dataset in datasets.items():
            answers: defaultdict[str, list[Answered]] = defaultdict(list)
            stores = 0
            task = progress.add_task(f"{name}: small stores", total=len(MIXTURES) * sum(size.stores for size in sizes))
            for mixture in MIXTURES:
                random = np.random.default_rng(_SEED)
                for size in sizes:
                    line = f"{mixture.name} {size.memories}"
                    for number in range(size.stores):
                        histories = dataset.histories
                        history = histories[number % len(histories)]
                        dealt = deal(name, datasets, history, size, mixture, random)
                        progress.advance(task)
                        if dealt is not None:
                            stores += 1
                            _ask(dealt, embedder, answers[line], answers[f"{line} missing"])
            found.append(Measured(name, stores, dict(answers)))
    finally:
        model.close()
    return found


def deal(
    name: str,
    datasets: Mapping[str, Dataset],
    history: History,
    size: Size,
    mixture: Mixture,
    random: np.random.Generator,
) -> Dealt | None:
    """Sample a store with evidence for questions from `history`; return None if it has too few items or questions."""
    own = _questions(history, size, random)
    evidence = {id_ for question in own for id_ in question.relevant}
    if not own or len(evidence) > size.memories or size.memories > len(history.items) * (1 + mixture.is_mixed):
        return None
    if not mixture.is_mixed:
        rest = [item.id for item in history.items if item.id not in evidence]
        chosen = evidence.union(_drawn(rest, size.memories - len(evidence), random))
        others = [one for other in datasets[name].histories if other is not history for one in other.answerable]
        missing = [one for one in history.answerable if chosen.isdisjoint(one.relevant)]
        return Dealt(
            items=tuple(item for item in history.items if item.id in chosen),
            own=tuple(own),
            others=tuple(_drawn(others, len(own), random)),
            missing=tuple(_drawn(missing, len(own), random)),
            strangers=frozenset(),
        )
    return _mixed(name, datasets, history, own, size, mixture, random)


def _mixed(
    name: str,
    datasets: Mapping[str, Dataset],
    history: History,
    own: Sequence[Question],
    size: Size,
    mixture: Mixture,
    random: np.random.Generator,
) -> Dealt | None:
    """Sample a store padded from other stores; its unanswerable questions come from stores not used for padding."""
    rest = [(of, other) for of, dataset in datasets.items() for other in dataset.histories if other is not history]
    rest = _drawn(rest, len(rest), random)
    used, unused = rest[: min(_MOST_STRANGE, len(rest) // 2)], rest[min(_MOST_STRANGE, len(rest) // 2) :]
    evidence = {id_ for question in own for id_ in question.relevant}
    strange = [
        msgspec.structs.replace(item, id=f"{place}/{item.id}", session=None)
        for place, (_, other) in enumerate(used)
        for item in _drawn(other.items, size.memories, random)
    ]
    strange = _drawn(strange, size.memories - len(evidence), random)
    items = [*(item for item in history.items if item.id in evidence), *strange]
    if len(items) < size.memories:
        return None
    if mixture.has_one_session:
        items = [msgspec.structs.replace(item, session="one", timestamp=None) for item in items]
    same_set = [one for of, other in unused if of == name for one in other.answerable]
    others = same_set or [one for _, other in unused for one in other.answerable]
    return Dealt(
        items=tuple(_drawn(items, len(items), random)),
        own=tuple(own),
        others=tuple(_drawn(others, len(own), random)),
        missing=(),
        strangers=frozenset(item.id for item in strange),
    )


def _questions(history: History, size: Size, random: np.random.Generator) -> list[Question]:
    """Return random questions from `history` whose evidence leaves room for other memories."""
    known = {item.id for item in history.items}
    asked = [one for one in history.answerable if known.issuperset(one.relevant)]
    asked = [one for one in asked if len(one.relevant) <= max(1, size.memories // 2)]
    chosen: list[Question] = []
    evidence: set[str] = set()
    for question in _drawn(asked, len(asked), random):
        if not chosen or len(evidence.union(question.relevant)) <= _EVIDENCE_SHARE * size.memories:
            chosen.append(question)
            evidence.update(question.relevant)
        if len(chosen) == size.questions:
            break
    return chosen


def _drawn(given: Sequence[T], most: int, random: np.random.Generator) -> list[T]:
    return [given[place] for place in random.permutation(len(given))[:most].tolist()]


def _ask(dealt: Dealt, embedder: Embedder, answers: list[Answered], missing: list[Answered]) -> None:
    events = History(user=_USER, items=dealt.items, questions=()).events(_USER)
    with (
        tempfile.TemporaryDirectory(prefix="small-store-") as folder,
        opener(Settings(), Path(folder), embedder)(_USER) as memory,
    ):
        for start in range(0, len(events), _BATCH):
            memory.ingest(events[start : start + _BATCH])
        own = (ask(memory, _USER, one, "hybrid", is_own=True, strangers=dealt.strangers) for one in dealt.own)
        answers += [*own, *(ask(memory, _USER, one, "hybrid", is_own=False) for one in dealt.others)]
        missing += [ask(memory, _USER, one, "hybrid", is_own=False) for one in dealt.missing]
