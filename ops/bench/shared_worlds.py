"""Builds worlds from recorded texts: users' own memories, published items, and the requests that each item helps with.

Each kind of request has several wordings for learning, and one that is held out. Which items help is taken from the
data's labels: a question's evidence, or a run's reward. The thoughts in software-engineering runs have no labels, so a
random third of the found items counts as helpful. The other found items are look-alikes: real texts that the shipped
search finds for the request.

The remaining texts become users' own memories.

A world contains the shipped code's results for each request: the memories that each owner recalls, and the items that a
search finds. Both are the same in every deployment, because deployments change neither users' own memories nor item
texts.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from memory_agent.embedders import Embedder
from memory_agent.evaluation import MAIN_CATEGORIES, History, read_beam, read_locomo
from memory_agent.knowledge import Knowledge
from memory_agent.memory import Memory
from memory_agent.recall.query import QueryDefaults, make_query
from memory_agent.records.memories import RetrievedMemory, Tier
from memory_agent.records.shared import FoundItem
from memory_agent.settings import LearningSettings, Settings, SharedSettings
from ops.lab.airline import RecordedRun, events_of, read_airline
from ops.lab.recurring_users import LAST_WORDING, WORDINGS
from ops.lab.swe_runs import read_swe_runs
from relay import SHARED_USER

SETTINGS = Settings(
    shared=SharedSettings(searches=1_000_000, searches_per_s=1e6), learning=LearningSettings(mode="off", patterns=False)
)
DEADLINE_MS = 600_000.0
FOUND = 10
"""An item counts as found if it is among a search's first `FOUND` results."""
TOP_K = 5
BOTH: tuple[Tier, ...] = ("local", "global")

_BATCH = 64
_START = datetime(2025, 1, 6, tzinfo=UTC)
_NOW = datetime(2026, 1, 5, 8, tzinfo=UTC)
_APART = timedelta(hours=1)
_LOOK_ALIKES = 4
_LEAST_LOOK_ALIKES = 2
_CHARS = 500
_ACCOUNT_CHARS = 1_500
_LONG_CHARS = 140
_TITLE_CHARS = 200
_THOUGHTS = 6
_DRAWN = 3  # if the data contain no labels, one memory in three counts as helpful
_CONVERSATION_KINDS, _CHAT_KINDS = 6, 4
_OWNERS = 5


class Text(NamedTuple):
    """One item's title and text."""

    title: str
    summary: str


class Kind(NamedTuple):
    """A kind of request.

    `helps` contains the positions of the items that help, and `found` the positions of the items that a search finds,
    best first. `wordings` are for learning; `held` is for users who never used an item.
    """

    name: str
    wordings: tuple[str, ...]
    held: str
    helps: frozenset[int]
    found: tuple[int, ...] = ()


@dataclass(frozen=True)
class World:
    """The owners of memories, the item ids and the kinds of request, before any report.

    `own` contains the memories that an owner recalls for a text. For each text, `found` contains the shared items in a
    recall of both tiers, and `searched` the results of a search of items only.
    """

    name: str
    labels: str
    owners: tuple[str, ...]
    items: tuple[str, ...]
    kinds: tuple[Kind, ...]
    candidates: int
    """The number of kinds, including those later removed because too few items were found."""
    own: Mapping[tuple[str, str], tuple[RetrievedMemory, ...]]
    found: Mapping[str, tuple[FoundItem, ...]]
    searched: Mapping[str, tuple[FoundItem, ...]]


class Draft(NamedTuple):
    """A world before any search: users' own memories are stored, but items are not published."""

    owners: tuple[str, ...]
    items: list[Text]
    kinds: list[Kind]


Make = Callable[[Path, Path, Embedder, np.random.Generator], Draft]


class Source(NamedTuple):
    """A data set: its name, its path in the folder, the source of its labels, and the function that drafts it."""

    name: str
    place: str
    labels: str
    make: Make


def prepare(source: Source, data: Path, folder: Path, embedder: Embedder) -> World:
    """Return a world of all usable kinds, with its stores in the empty `folder`."""
    random = np.random.default_rng(5)
    draft = source.make(data / source.place, folder, embedder, random)
    with (
        Knowledge.open(folder / SHARED_USER, settings=SETTINGS, embedder=embedder) as shared,
        Memory.open(folder / "author", settings=SETTINGS, embedder=embedder, shared=shared) as author,
        Memory.open(folder / "reader", settings=SETTINGS, embedder=embedder, shared=shared) as reader,
    ):
        items = publish(author, draft.items)
        known = list(_searched(draft.kinds, reader, items))
        if source.labels == "drawn":
            known = [_with_drawn(kind, random) for kind in known]
        kinds = [kind for kind in known if _is_fit(kind)]
        texts = [text for kind in kinds for text in (*kind.wordings, kind.held)]
        found = {text: tuple(_given(reader, text)) for text in texts}
        searched = {kind.held: tuple(reader.shared.search(kind.held, 2 * FOUND)) for kind in kinds}
    return World(
        source.name,
        source.labels,
        draft.owners,
        tuple(items),
        tuple(kinds[place] for place in random.permutation(len(kinds)).tolist()),
        len(draft.kinds),
        {
            (owner, text): memories
            for owner in draft.owners
            for text, memories in _recalled(folder, owner, texts, embedder)
        },
        found,
        searched,
    )


def keep(world: World, folder: Path) -> None:
    """Write a world to `folder`, for other processes."""
    (folder / world.name).write_bytes(pickle.dumps(world))


def kept(name: str, folder: Path) -> World:
    """Read a world written by `keep`."""
    world: World = pickle.loads((folder / name).read_bytes())
    return world


def publish(author: Memory, items: Sequence[Text]) -> list[str]:
    """Publish `items` as the author; return their ids."""
    return [author.shared.confirm(author.shared.preview(item.title, item.summary)).id for item in items]


def own_folder(folder: Path, owner: str) -> Path:
    """Return the folder of the owner's memories."""
    return folder / "own" / owner


def _searched(kinds: Sequence[Kind], reader: Memory, items: Sequence[str]) -> Iterator[Kind]:
    """Yield each kind with the items that a search finds for all its wordings, in the first wording's order."""
    places = {item_id: place for place, item_id in enumerate(items)}
    for kind in kinds:
        asked = [kind.wordings[0], kind.held]
        answers = [[places[one.item.id] for one in reader.shared.search(text, FOUND)] for text in asked]
        yield kind._replace(found=tuple(place for place in answers[0] if place in answers[1]))


def _given(reader: Memory, text: str) -> list[FoundItem]:
    """Return the shared items that a recall of both tiers finds for a text."""
    asked = make_query(text, TOP_K, None, None, DEADLINE_MS, {"tiers": BOTH}, QueryDefaults(SETTINGS.recall, _NOW))
    pending = reader.shared.begin_search(asked)
    assert pending is not None
    return pending(DEADLINE_MS)


def _recalled(
    folder: Path, owner: str, texts: Sequence[str], embedder: Embedder
) -> Iterator[tuple[str, tuple[RetrievedMemory, ...]]]:
    with Memory.open(own_folder(folder, owner), settings=SETTINGS, embedder=embedder) as memory:
        for text in texts:
            yield text, memory.recall(text, TOP_K, deadline_ms=DEADLINE_MS, now=_NOW).memories


def _with_drawn(kind: Kind, random: np.random.Generator) -> Kind:
    """Return the kind with its helpful items replaced by a random third of those that were found."""
    near = [place for place in kind.found if place in kind.helps]
    drawn = random.permutation(len(near))[: max(len(near) // _DRAWN, 1)] if near else ()
    return kind._replace(helps=frozenset(near[place] for place in drawn))


def _is_fit(kind: Kind) -> bool:
    helpful = sum(place in kind.helps for place in kind.found)
    return helpful > 0 and len(kind.found) - helpful >= _LEAST_LOOK_ALIKES


def _of_histories(
    histories: Sequence[History], each: int, folder: Path, embedder: Embedder, random: np.random.Generator
) -> Draft:
    """Draft a world whose items are the turns that answer questions, and other turns found in the same history."""
    items: list[Text] = []
    kinds: list[Kind] = []
    for history in histories:
        asked = [one for one in history.answerable if one.category in MAIN_CATEGORIES or not one.category.isdigit()]
        place_of: dict[str, int] = {}
        with _ingested(folder, history.user, history.events(history.user), embedder) as memory:
            for place in random.permutation(len(asked))[: 3 * each].tolist():
                question = asked[place]
                found = memory.recall(question.text, 2 * FOUND, deadline_ms=DEADLINE_MS).memories
                names = {one.record.event_id: one.record for one in found}
                evidence = {f"{history.user}:{id_}" for id_ in question.relevant}
                helping = [record for name, record in names.items() if _is_named(name, evidence)]
                others = [record for name, record in names.items() if not _is_named(name, evidence)][:_LOOK_ALIKES]
                if not helping or len(others) < _LEAST_LOOK_ALIKES:
                    continue
                for record in (*helping, *others):
                    if record.id not in place_of:
                        place_of[record.id] = len(items)
                        items.append(Text(f"Session {record.session_id}", record.text))
                helps = frozenset(place_of[record.id] for record in helping)
                kinds.append(_worded(f"{history.user}/{question.id}", question.text, helps))
                if sum(kind.name.startswith(f"{history.user}/") for kind in kinds) == each:
                    break
            memory.forget(list(place_of))
    return Draft(tuple(history.user for history in histories), items, kinds)


def _is_named(name: str | None, evidence: set[str]) -> bool:
    return name in evidence


def _worded(name: str, text: str, helps: frozenset[int]) -> Kind:
    return Kind(name, tuple(wording.format(text) for wording in WORDINGS[:5]), LAST_WORDING.format(text), helps)


def _locomo(place: Path, folder: Path, embedder: Embedder, random: np.random.Generator) -> Draft:
    return _of_histories(read_locomo(place).histories, _CONVERSATION_KINDS, folder, embedder, random)


def _beam(place: Path, folder: Path, embedder: Embedder, random: np.random.Generator) -> Draft:
    """Draft a world from the chats, with truncated messages, since embedding whole messages takes minutes."""
    histories = [_cut(history) for history in read_beam(place).histories]
    return _of_histories(histories, _CHAT_KINDS, folder, embedder, random)


def _cut(history: History) -> History:
    items = tuple(msgspec.structs.replace(item, text=item.text[:_CHARS]) for item in history.items)
    return msgspec.structs.replace(history, items=items)


def _airline(place: Path, folder: Path, embedder: Embedder, random: np.random.Generator) -> Draft:
    """Draft a world whose items describe the runs of solved tasks; users own the runs of the other tasks."""
    runs = read_airline(place).runs
    by_task = _by_task(runs)
    solved = [of_task for of_task in by_task.values() if any(run.succeeded for run in of_task)]
    items: list[Text] = []
    kinds = []
    for of_task in solved:
        helps = frozenset(len(items) + place for place, run in enumerate(of_task) if run.succeeded)
        items += [Text("A request of an airline's customer", _account(run)) for run in of_task]
        *taught, held = (run.request for run in of_task)
        kinds.append(Kind(of_task[0].run_id, tuple(taught), held, helps))
    others = [run for of_task in by_task.values() if of_task not in solved for run in of_task]
    owned = {f"agent-{number}": others[number::_OWNERS] for number in range(_OWNERS)}
    return Draft(_own_runs(folder, owned, embedder), items, kinds)


def _swe(place: Path, folder: Path, embedder: Embedder, random: np.random.Generator) -> Draft:
    """Draft a world: items are thoughts from the runs on half of the issues, and users own the other runs."""
    by_task = list(_by_task(read_swe_runs(place)).values())
    order = random.permutation(len(by_task)).tolist()
    published = [by_task[number] for number in order[: len(order) // 2]]
    others = [run for number in order[len(order) // 2 :] for run in by_task[number]]
    items: list[Text] = []
    kinds = []
    for of_task in published:
        title, _, rest = of_task[0].request.partition("\n")
        long = [text for run in of_task for _, text in run.steps if len(text) > _LONG_CHARS]
        thoughts = list(dict.fromkeys(long))[:: max(len(long) // _THOUGHTS, 1)][:_THOUGHTS]
        helps = frozenset(range(len(items), len(items) + len(thoughts)))  # a third of these will be drawn
        items += [Text(title[:_TITLE_CHARS], thought) for thought in thoughts]
        kinds.append(_worded(of_task[0].run_id, title, helps)._replace(held=rest.strip()[:_CHARS]))
    owned = {f"engineer-{number}": others[number::_OWNERS] for number in range(_OWNERS)}
    return Draft(_own_runs(folder, owned, embedder), items, kinds)


def _by_task(runs: Sequence[RecordedRun]) -> dict[int, list[RecordedRun]]:
    found: dict[int, list[RecordedRun]] = {}
    for run in runs:
        found.setdefault(run.task, []).append(run)
    return found


def _account(run: RecordedRun) -> str:
    said = [text for event_type, text in run.steps if event_type == "worker.report.received"]
    return "\n".join(said)[:_ACCOUNT_CHARS]


def _own_runs(folder: Path, owned: Mapping[str, Sequence[RecordedRun]], embedder: Embedder) -> tuple[str, ...]:
    for owner, runs in owned.items():
        events = [event for place, run in enumerate(runs) for event in events_of(run, owner, _START + place * _APART)]
        _ingested(folder, owner, events, embedder).close()
    return tuple(owned)


def _ingested(folder: Path, owner: str, events: Sequence[Mapping[str, Any]], embedder: Embedder) -> Memory:
    memory = Memory.open(own_folder(folder, owner), settings=SETTINGS, embedder=embedder)
    for start in range(0, len(events), _BATCH):
        memory.ingest(events[start : start + _BATCH])
    return memory


SOURCES = (
    Source("LoCoMo", "locomo_dev.json", "evidence", _locomo),
    Source("SWE", "swe_runs_dev.json", "drawn", _swe),
    Source("Airline", "airline_runs_dev.json", "reward", _airline),
    Source("BEAM", "beam_dev", "evidence", _beam),
)
