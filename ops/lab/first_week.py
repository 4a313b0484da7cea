"""Measures how many runs a new user needs before the gate opens, and how often it opens for users who gain nothing.

Users are built from recorded agent runs. A *world* is a memory of past runs. A *topic* is one of the tasks
in these runs. Each user has six topics; four in five requests are about one of these, in the words of a recorded
request. A topic needs two memories: of the task's memories that the task's requests find, the two that are most similar
to what the recorded agent said or did. A run uses the needed memories that are shown, but each is replaced by another
shown memory with a probability of 20 %. The run's outcome is that of the recorded run.

Before the gate opens, learning does not change answers. The candidates of each request are therefore evaluated once,
and each user's learner and gate are replayed on them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.evaluation.runs import Progress, opener
from memory_agent.layout import Layout
from memory_agent.learning import Advice
from memory_agent.memory import Memory
from memory_agent.recall import pipeline
from memory_agent.recall.candidates import Candidates
from memory_agent.recall.query import Deadline, QueryDefaults, make_query
from memory_agent.recall.search import Search
from memory_agent.recall.selection import compared as compared_by
from memory_agent.recall.stages import PastUse, scale_of
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import Settings
from ops.lab.airline import RecordedRun, events_of
from ops.lab.arms import WRONG_CITATIONS
from ops.lab.gains import Array
from ops.lab.recurring_users import WORDINGS
from ops.lab.stores import CachingEmbedder
from sona import Comparison, Gate, Learner, Lesson, Vector, compare
from sona.gate import _wilson

Uses = Literal["needed", "random", "places", "drift", "misleading", "equal"]
"""How runs use memories. *needed*: as described above. In all other cases, learning has nothing to gain. *random*: an
equal number of random shown memories. *places*: the positions used in another recall of the same world. *drift*: an
equal number, chosen by position alone (at first from the first positions, later from all positions); the topics change
after every 15 runs. *misleading*: one memory, chosen by position alone, from the distribution that gains most from the
bet. *equal*: as *needed*, but with randomly permuted ranks and boosts (A/A).
"""
USES: tuple[Uses, ...] = get_args(Uses)

_START = datetime(2025, 1, 6, tzinfo=UTC)
_APART = timedelta(hours=6)
_SHOWN = 10
_TOPICS, _NEEDED, _RECURRING = 6, 2, 0.8
_PARTS, _PART_CHARS, _LEAST_CHARS = 4, 300, 40
_SAID_CHARS, _STEPS = 600, 6
_ISSUES = 40
_DRIFT, _CHANGE = 30, 15
_BATCH = 64
_NO_DEADLINE_MS = 60_000.0


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """One run: the positions of the memories it needs and uses, their ranks, and the comparison's inputs.

    `ranks` and `boosts` are empty if the rankings were not compared or did not differ.
    """

    size: int
    needed: tuple[int, ...]
    learned: tuple[int, ...]
    used: tuple[int, ...]
    ranks: tuple[int, ...] = ()
    boosts: tuple[int, ...] = ()
    recurs: bool = False


class Life(msgspec.Struct, frozen=True):
    """One user's runs."""

    source: str
    world: int
    user: int
    uses: Uses
    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Topic:
    """A task: the ids of the memories it needs, and its requests with the qualities of their runs."""

    needed: tuple[str, ...]
    requests: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Answer:
    """A request's candidates, and the answer of the baseline with ids and vectors."""

    search: Search
    found: Candidates
    baseline: Candidates
    ids: tuple[str, ...]
    vectors: Vector


@dataclass
class World:
    """A memory of past runs, its topics, and the answers found so far. `places` are positions of used memories."""

    source: str
    number: int
    memory: Memory
    settings: Settings
    now: datetime
    topics: list[Topic] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    places: list[tuple[int, ...]] = field(default_factory=list)

    def answer(self, text: str) -> Answer:
        """Return the baseline's answer to a request."""
        if text not in self.answers:
            self.answers[text] = self._found(text)
        return self.answers[text]

    def _found(self, text: str) -> Answer:
        defaults = QueryDefaults(self.settings.recall, self.now)
        query = make_query(text, _SHOWN, None, None, _NO_DEADLINE_MS, {"unlogged": True}, defaults)
        deadline, dates = Deadline(query.deadline_ms), pipeline._dates_in(query)
        searcher = self.memory._pipeline._searcher
        search = searcher.search(query, dates, searcher.begin(query, deadline), deadline)
        found = pipeline._evaluated(search)
        baseline = pipeline._selected(search, Advice(), self.settings.learning)
        records = search.store.records(baseline.rows.tolist())
        ids = tuple("" if record is None else record.id for record in records)
        return Answer(search, found, baseline, ids, search.view.vectors.vectors(baseline.slots))


def worlds_of(files: Mapping[str, Sequence[RecordedRun]], count: int, settings: Settings) -> Iterator[World]:
    """Yield `count` worlds built from the runs of each source. Raises `ModelError` if the model is missing."""
    if not files:
        return
    own = open_embedder(settings.embedder)
    try:
        embedder = CachingEmbedder(own)
        for source, number in product(files, range(count)):
            with world_of(source, number, files[source], settings, embedder) as world:
                yield world
    finally:
        own.close()


@contextmanager
def world_of(
    source: str, number: int, runs: Sequence[RecordedRun], settings: Settings, embedder: Embedder
) -> Iterator[World]:
    """Yield a world built from some of the runs: half of each airline task's trials, or 40 issues."""
    random = np.random.default_rng((number, 11))
    past, asking = _airline_parts(runs, random) if source == "airline" else _issue_parts(runs, random)
    with tempfile.TemporaryDirectory(prefix="memory-eval-") as folder:
        Layout(Path(folder)).create()
        with opener(settings, Path(folder), embedder)(source) as memory:
            now, tasks = _START, dict[str, int]()
            for run in past:
                events = events_of(run, source, now)
                for start in range(0, len(events), _BATCH):
                    report = memory.ingest(events[start : start + _BATCH], now=now)
                    tasks |= dict.fromkeys(report.record_ids, run.task)
                now += _APART
            world = World(source, number, memory, settings, now)
            records = {record.id: record for record in memory.get(list(tasks), with_embedding=True)}
            for task in sorted({run.task for run in asking}):
                own = [records[id] for id in tasks if tasks[id] == task and id in records]
                topic = _topic(world, [run for run in asking if run.task == task], own, embedder)
                if topic is not None:
                    world.topics.append(topic)
            yield world


def _airline_parts(
    runs: Sequence[RecordedRun], random: np.random.Generator
) -> tuple[list[RecordedRun], list[RecordedRun]]:
    trials = sorted({run.trial for run in runs})
    past = {trials[place] for place in random.permutation(len(trials))[: len(trials) // 2]}
    return [run for run in runs if run.trial in past], [run for run in runs if run.trial not in past]


def _issue_parts(
    runs: Sequence[RecordedRun], random: np.random.Generator
) -> tuple[list[RecordedRun], list[RecordedRun]]:
    tasks = sorted({run.task for run in runs})
    chosen = {tasks[place] for place in random.permutation(len(tasks))[:_ISSUES]}
    own = [run for run in runs if run.task in chosen]
    return own, own


def _topic(
    world: World, runs: Sequence[RecordedRun], records: Sequence[MemoryRecord], embedder: Embedder
) -> Topic | None:
    """Return a task's topic, or None if the task's requests find none of the task's memories."""
    said = [text[:_SAID_CHARS] for run in runs for text in (*_calls(run)[-_STEPS:], run.ending)]
    requests = [(text, float(run.succeeded)) for run in runs for text in _parts(world.source, run.request)]
    shown = {id for text, _ in requests for id in world.answer(text).ids}
    whole = {text[:_LEAST_CHARS] for text in said}
    own = [
        record
        for record in records
        if record.id in shown and record.source != "conductor_plan" and record.text[:_LEAST_CHARS] not in whole
    ]
    if not own:
        return None
    vectors = np.array([record.embedding for record in own])
    alike = (vectors @ np.array([embedder.embed_query(text) for text in said]).T).mean(axis=1)
    needed = tuple(own[place].id for place in np.argsort(-alike)[:_NEEDED])
    return Topic(needed, tuple(dict.fromkeys(requests)))


def _calls(run: RecordedRun) -> list[str]:
    return [text for kind, text in run.steps if kind == "conductor.assignment.dispatched"]


def _parts(source: str, request: str) -> list[str]:
    """Return a request. An issue is too long to be a request; its first paragraphs and sentences are returned
    instead."""
    if source == "airline":
        return [request[:_SAID_CHARS]]
    parts = [" ".join(part.split())[:_PART_CHARS] for part in re.split(r"\n\s*\n|(?<=[.?!])\s+", request)]
    return [part for part in parts if len(part) >= _LEAST_CHARS][:_PARTS] or [request[:_PART_CHARS]]


def live(world: World, user: int, uses: Uses, runs: int) -> Life:
    """Simulate one user's runs. `uses` other than *needed* require that the world has `places`."""
    random = np.random.default_rng((world.number, user, USES.index(uses), 12))
    order = random.permutation(len(world.topics))
    asks: list[Ask] = []
    learner: Learner | None = None
    for number in range(runs):
        if uses == "drift" and number and number % _CHANGE == 0:
            order = random.permutation(len(world.topics))
        recurs = bool(random.random() < _RECURRING)
        among = order[:_TOPICS] if recurs else order[_TOPICS:]
        topic = world.topics[among[random.integers(len(among))]]
        text, quality = topic.requests[random.integers(len(topic.requests))]
        answer = world.answer(WORDINGS[random.integers(len(WORDINGS))].format(text))
        if answer.search.vector is None:
            raise AssertionError("a request has no vector")
        query = answer.search.vector.raw
        learner = learner or Learner(query.size)
        compared = _compared(answer, learner, world.settings)
        if uses == "equal":
            order_of_ranks = random.permutation(len(answer.ids))
            compared = msgspec.structs.replace(
                compared, ranks=compared.ranks[order_of_ranks], boosts=compared.boosts[order_of_ranks]
            )
        needed = tuple(answer.ids.index(id) for id in topic.needed if id in answer.ids)
        used = _used(uses, world, answer, needed, compared, number, random)
        ranks = tuple(compared.ranks.tolist())
        differs = ranks != tuple(sorted(ranks)) or bool(compared.boosts.any())
        ask = Ask(
            size=len(answer.ids),
            needed=needed,
            learned=tuple(int(ranks[place]) - 1 if any(ranks) else place for place in needed),
            used=used,
            ranks=ranks if differs else (),
            boosts=tuple(compared.boosts.tolist()) if differs else (),
            recurs=recurs,
        )
        asks.append(ask)
        learner.learn(_lesson(number + 1, answer, used, quality))
    return Life(world.source, world.number, user, uses, tuple(asks))


def _compared(answer: Answer, learner: Learner, settings: Settings) -> Candidates:
    """Return the baseline with the learned ranks and boosts, as in a trial's recall."""
    vector = answer.search.vector
    adaptation = None if vector is None else learner.adapt(vector.raw)
    if adaptation is None:
        return answer.baseline
    past_use = PastUse(adaptation, settings.learning, scale_of(answer.found.total[answer.found.answers]))
    learned = pipeline._by_past_use(answer.found, answer.search, past_use)
    return compared_by(answer.baseline, learned, adaptation.reached)


def _used(
    uses: Uses,
    world: World,
    answer: Answer,
    needed: tuple[int, ...],
    compared: Candidates,
    number: int,
    random: np.random.Generator,
) -> tuple[int, ...]:
    size = len(answer.ids)
    if uses in ("needed", "equal"):
        others = [place for place in range(size) if place not in needed]
        mistaken = random.random(len(needed)) < WRONG_CITATIONS
        cited = (
            others[random.integers(len(others))] if is_wrong and others else place
            for place, is_wrong in zip(needed, mistaken, strict=True)
        )
        return tuple(sorted({int(place) for place in cited}))
    places = world.places[random.integers(len(world.places))]
    if uses == "places":
        return tuple(place for place in places if place < size)
    if uses == "drift" and number < _DRIFT:
        return tuple(range(min(len(places), size)))
    if uses == "misleading" and places and any(compared.ranks):
        return (int(random.integers(_most_misleading(compared))),)
    return _random(size, len(places), random)


def _random(size: int, count: int, random: np.random.Generator) -> tuple[int, ...]:
    return tuple(sorted(random.permutation(size)[:count].tolist()))


def _most_misleading(compared: Candidates) -> int:
    """Return the n for which the bet gains most if memories are drawn at random from the first n."""
    ranks, boosts = compared.ranks.tolist(), compared.boosts.tolist()
    factors = [1.0 if one is None else one.learned for one in (compare(ranks, boosts, [p]) for p in range(len(ranks)))]
    means: Array = np.cumsum(factors) / np.arange(1, len(ranks) + 1)
    return 1 + int(means.argmax())


def _lesson(number: int, answer: Answer, used: Sequence[int], quality: float) -> Lesson:
    vector = answer.search.vector
    if vector is None:
        raise AssertionError("a request has no vector")
    rows = answer.baseline.rows[list(used)].tolist()
    vectors = answer.vectors[list(used)]
    return Lesson(number, vector.raw, tuple(rows), vectors, (1.0,) * len(rows), quality)


def opened_at(life: Life) -> int | None:
    """Return the number of runs after which the gate first opens, or None."""
    gate = Gate()
    for number, ask in enumerate(life.asks, 1):
        if ask.used:
            gate.credit()
        gate.observe(_comparison(ask))
        if gate.state == "on":
            return number
    return None


def _comparison(ask: Ask) -> Comparison | None:
    return compare(ask.ranks, ask.boosts, ask.used) if ask.ranks else None


def simulate(world: World, users: int, runs: int, lives: Path, progress: Progress) -> None:
    """Append each user's life to the file `lives`, one line of JSON per user; skip users that the file already
    contains."""
    known = {(life.source, life.world, life.user, life.uses): life for life in read_lives(lives)}
    world.places.clear()
    with lives.open("ab") as file:
        for done, (uses, user) in enumerate(product(USES, range(users)), 1):
            life = known.get((world.source, world.number, user, uses))
            if life is None:
                life = live(world, user, uses, runs)
                file.write(msgspec.json.encode(life) + b"\n")
                file.flush()
            if uses == "needed":
                world.places += [ask.used for ask in life.asks if ask.size == _SHOWN]
            progress(f"{world.source} {world.number}", done, users * len(USES))


def read_lives(file: Path) -> list[Life]:
    """Return the lives in the file; an incomplete last line is ignored."""
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        file.write_bytes(whole)
    return [msgspec.json.decode(line, type=Life) for line in whole.splitlines()]


class FirstWeek(msgspec.Struct, frozen=True, kw_only=True):
    """The gates of all users with the same source and the same way of using memories.

    `quarter`, `median`, `three_quarters` and `ninth` are the quantiles .25, .5, .75 and .9 of the number of runs until
    the gate opens. Each is None if the gate opens for a smaller share of the users. `low` and `high` bound the share of
    users for whom the gate opens (Wilson, 95 %). For recurring requests in the second half of the runs, `base` and
    `learned` are the shares of the needed memories that rank among the first five, without and with learning.
    """

    source: str
    uses: Uses
    users: int
    runs: int
    credited: float
    quarter: int | None
    median: int | None
    three_quarters: int | None
    ninth: int | None
    opened: float
    low: float
    high: float
    base: float
    learned: float


def summarise(lives: Sequence[Life]) -> list[FirstWeek]:
    """Return the figures for each source and for all sources together, for each way of using memories."""
    sources = sorted({life.source for life in lives})
    found = []
    for way in USES:
        for source in (*sources, "all"):
            some = [life for life in lives if life.uses == way and source in (life.source, "all")]
            if some:
                found.append(_figures(source, way, some))
    return found


def _figures(source: str, uses: Uses, lives: Sequence[Life]) -> FirstWeek:
    opened = [at for life in lives if (at := opened_at(life)) is not None]
    share = _wilson(len(opened), len(lives))
    late = [ask for life in lives for ask in life.asks[len(life.asks) // 2 :] if ask.recurs]
    return FirstWeek(
        source=source,
        uses=uses,
        users=len(lives),
        runs=len(lives[0].asks),
        credited=sum(bool(ask.used) for life in lives for ask in life.asks) / len(lives),
        quarter=_quantile(opened, 0.25, len(lives)),
        median=_quantile(opened, 0.5, len(lives)),
        three_quarters=_quantile(opened, 0.75, len(lives)),
        ninth=_quantile(opened, 0.9, len(lives)),
        opened=len(opened) / len(lives),
        low=share.low + 0.5,
        high=share.high + 0.5,
        base=sum(place < 5 for ask in late for place in ask.needed) / (len(late) * _NEEDED),
        learned=sum(place < 5 for ask in late for place in ask.learned) / (len(late) * _NEEDED),
    )


def _quantile(values: Sequence[int], share: float, count: int) -> int | None:
    place = int(np.ceil(share * count)) - 1
    return sorted(values)[place] if place < len(values) else None
