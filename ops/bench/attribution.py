"""Measures how well a run's own words reveal the memories that it used: the precision, and the share of the used
memories that are named.

For LoCoMo, the answer to a question is taken as a run's output. The shown memories are the first ten results of the
shipped recall, and the used memories are the evidence turns. Real outputs are longer, so the answer is also tested
between two other sentences in a report, and among the answers to 4 or 19 other questions about the conversation. The
evidence for those questions then also counts as used. The threshold was tuned on conversations 0 to 2.

For airline runs (`attribution_airline`), only false attributions are measured, since no memory was shown to any run.

    python -m ops.bench.attribution LOCOMO_FILE [AIRLINE_FILE]      two minutes; writes ops/bench/attribution.md
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memory_agent.embedders import Embedder
from memory_agent.evaluation import MAIN_CATEGORIES, History, Plan, Question, read_locomo
from memory_agent.evaluation.runs import ingested
from memory_agent.learning.attribution import THRESHOLD, ShownText, statements, stem, weigh
from memory_agent.memory import Memory
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from ops.bench.attribution_airline import airline_lines
from ops.bench.counted_texts import CountedTexts
from ops.bench.machine import describe_machine

PAGE = Path(__file__).with_name("attribution.md")

_SHOWN = 10
_CHOSEN_ON = ("0", "1", "2")
_THRESHOLDS = (3.0, 3.5, THRESHOLD, 4.5, 5.0, 6.0)
_FEWEST = 20  # minimum number of named memories for a meaningful precision
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Case:
    """A question, its answer, and the k shown memories. `vectors` (k, d) and `answer_vector` (d,) have unit length."""

    user: str
    request: str
    answer: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    relevant: frozenset[str]
    vectors: npt.NDArray[np.float32]
    answer_vector: npt.NDArray[np.float32]

    @property
    def shown(self) -> list[ShownText]:
        """The shown memories, numbered from 0."""
        return [ShownText(place, text) for place, text in enumerate(self.texts)]


@dataclass(frozen=True)
class Scored:
    """The score of each shown memory, whether it was used, and whether it is from a development part; all (n,)."""

    scores: npt.NDArray[np.float64]
    used: npt.NDArray[np.bool_]
    chosen_on: npt.NDArray[np.bool_]

    def cells(self, threshold: float) -> list[str]:
        """Return three table cells (precision, share of used memories found, number of memories named) for the
        development conversations, then three for the others.
        """
        return [cell for part in (self.chosen_on, ~self.chosen_on) for cell in self._cells(part, threshold)]

    def least_with(self, precision: float) -> float | None:
        """Return the lowest threshold that reaches `precision` on the development conversations, or None."""
        scores, used = self.scores[self.chosen_on], self.used[self.chosen_on]
        for threshold in np.unique(scores[scores > 0]):
            named = scores >= threshold
            if named.sum() >= _FEWEST and used[named].mean() >= precision:
                return float(threshold)
        return None

    def _cells(self, part: npt.NDArray[np.bool_], threshold: float) -> list[str]:
        named = part & (self.scores >= threshold)
        right = int((named & self.used).sum())
        found = right / max(int((part & self.used).sum()), 1)
        return [f"{right / named.sum():.2f}" if named.any() else "-", f"{found:.2f}", str(int(named.sum()))]


Score = Callable[[str, Case, CountedTexts], Sequence[float]]
Form = Callable[[Case, random.Random], tuple[str, frozenset[str]]]
"""Returns an output and the ids of the memories that it used."""


def cases(file: Path) -> tuple[list[Case], dict[str, CountedTexts]]:
    """Recall memories for each question in the main categories; return the cases and each user's word counts."""
    answers = [[entry.get("answer") for entry in part["qa"]] for part in json.loads(file.read_bytes())]
    plan = Plan(dataset=read_locomo(file), settings=Settings(), mode="hybrid", top_k=_SHOWN)
    found: list[Case] = []
    with ingested(plan, lambda *_: None) as prepared:
        for user_id, history in plan.users():
            folder = user_folder(prepared.data_dir, user_id)
            with Memory.open(folder, user_id=user_id, embedder=prepared.embedder) as memory:
                for question, answer in _answered(history, answers[int(history.user)]):
                    found.append(_case(history.user, user_id, question, answer, memory, prepared.embedder))
    stores = {part.user: CountedTexts(item.text for item in part.items) for part in plan.dataset.histories}
    return found, stores


def _answered(history: History, answers: Sequence[object]) -> Iterator[tuple[Question, str]]:
    for question in history.answerable:
        answer = answers[int(question.id.partition(":")[2])]
        if question.category in MAIN_CATEGORIES and answer is not None:
            yield question, str(answer)


def _case(user: str, user_id: str, question: Question, answer: str, memory: Memory, embedder: Embedder) -> Case:
    result = memory.recall(question.text, _SHOWN, reference_time=question.asked_at, min_relevance=0.0)
    shown = memory.get([one.record.id for one in result.memories], with_embedding=True)
    return Case(
        user=user,
        request=question.text,
        answer=answer,
        ids=tuple((record.event_id or "").removeprefix(f"{user_id}:") for record in shown),
        texts=tuple(record.text for record in shown),
        relevant=frozenset(question.relevant),
        vectors=np.array([record.embedding for record in shown], dtype=np.float32),
        answer_vector=embedder.embed_query(answer),
    )


def forms(found: Sequence[Case]) -> dict[str, Form]:
    """Return, by name, the functions that turn a case into a run's output."""
    by_user: defaultdict[str, list[Case]] = defaultdict(list)
    for case in found:
        by_user[case.user].append(case)

    def among(others: int) -> Form:
        def form(case: Case, chance: random.Random) -> tuple[str, frozenset[str]]:
            told = [case, *chance.sample([other for other in by_user[case.user] if other is not case], others)]
            chance.shuffle(told)
            return ". ".join(one.answer for one in told) + ".", frozenset().union(*(one.relevant for one in told))

        return form

    def another(case: Case, chance: random.Random) -> tuple[str, frozenset[str]]:
        other = chance.choice([other for other in by_user[case.user] if other is not case])
        return other.answer, other.relevant

    return {
        "the answer": lambda case, _: (case.answer, case.relevant),
        "request and answer in one sentence": lambda case, _: (
            f"{case.request.rstrip('?')}: {case.answer}",
            case.relevant,
        ),
        "in a report of three sentences": lambda case, _: (
            f"I have looked through what was said.\nThe answer is: {case.answer}.\nThe task is done.",
            case.relevant,
        ),
        "among 5 answers": among(4),
        "among 20 answers": among(19),
        "the answer to another question": another,
    }


def scored(found: Sequence[Case], stores: Mapping[str, CountedTexts], form: Form, score: Score) -> Scored:
    """For every question, score all memories that were shown. Deterministic: the choice of other answers is seeded."""
    chance = random.Random(0)
    scores: list[float] = []
    used: list[bool] = []
    for case in found:
        output, relevant = form(case, chance)
        scores += score(output, case, stores[case.user])
        used += [id_ in relevant for id_ in case.ids]
    chosen_on = [case.user in _CHOSEN_ON for case in found for _ in case.ids]
    return Scored(np.array(scores), np.array(used), np.array(chosen_on))


def shipped(output: str, case: Case, store: CountedTexts) -> list[float]:
    """Score with the shipped attribution, as the learner does."""
    by_place = {one.row: one.score for one in weigh(output, case.request, case.shown, store)}
    return [by_place.get(place, 0.0) for place in range(len(case.texts))]


def keeping_request(output: str, case: Case, store: CountedTexts) -> list[float]:
    """Score with the shipped attribution, but without the run's request."""
    by_place = {one.row: one.score for one in weigh(output, "", case.shown, store)}
    return [by_place.get(place, 0.0) for place in range(len(case.texts))]


def cosine(_output: str, case: Case, _store: CountedTexts) -> list[float]:
    """Score by the cosine similarity of the answer's and the memory's vectors."""
    return [float(score) for score in case.vectors @ case.answer_vector]


def place(_output: str, case: Case, _store: CountedTexts) -> list[float]:
    """Score only by recall rank, which credits the first memories."""
    return [1.0 / (at + 1) for at in range(len(case.texts))]


def shared_words(output: str, case: Case, store: CountedTexts) -> list[float]:
    """Score by the rarity-weighted share of the output's words that the memory contains."""
    said = _rarities(output, case, store)
    total = sum(said.values()) or 1.0
    return [sum(said[word] for word in said.keys() & set(_stems(text))) / total for text in case.texts]


def longest_phrase(output: str, case: Case, store: CountedTexts) -> list[float]:
    """Score by the rarity of the longest phrase that the output and the memory share."""
    said, rarity = _stems(output), _rarities(output, case, store)
    return [_longest(said, _stems(text), rarity) for text in case.texts]


def _longest(said: list[str], text: list[str], rarity: Mapping[str, float]) -> float:
    best, before = 0.0, [0.0] * (len(text) + 1)
    for word in said:
        row = [0.0] + [before[at] + rarity.get(word, 0.0) if other == word else 0.0 for at, other in enumerate(text)]
        best, before = max(best, *row), row
    return best


def _rarities(output: str, case: Case, store: CountedTexts) -> dict[str, float]:
    asked = set(_stems(case.request))
    words = {stem_: word for one in statements(output) for stem_, word in one.words.items() if stem_ not in asked}
    having = store.having(list(words.values()))
    return {stem_: float(np.log2((store.memories + 1) / (having[word] + 0.5))) for stem_, word in words.items()}


def _stems(text: str) -> list[str]:
    return [stem(word) for word in _WORD.findall(text.casefold())]


def locomo_lines(file: Path) -> Iterator[str]:
    """Yield the lines of the page's LoCoMo section."""
    found, stores = cases(file)
    made = forms(found)
    total = sum(len(case.ids) for case in found)
    base = scored(found, stores, made["the answer"], shipped).used
    yield f"{len(found)} questions, {total} memories shown, {int(base.sum())} of them used ({base.mean():.1%})."
    head = "precision, 0 to 2 | found | named | precision, 3 and 4 | found | named |"
    yield from ("", "## By the length of the output", "", f"| output | {head}", "|---|" + "---|" * 6)
    for name, form in made.items():
        yield _row(name, scored(found, stores, form, shipped).cells(THRESHOLD))
    for name in ("the answer", "among 20 answers"):
        figures = scored(found, stores, made[name], shipped)
        yield from ("", f"## By the threshold: {name}", "", f"| threshold | {head}", "|---|" + "---|" * 6)
        yield from (_row(f"{threshold:g}", figures.cells(threshold)) for threshold in _THRESHOLDS)
    yield from ("", "## Other signals, each at its lowest threshold with a precision of .8 on 0 to 2", "")
    yield from (f"| signal | threshold | {head}", "|---|---|" + "---|" * 6)
    one_sentence = made["request and answer in one sentence"]
    signals: dict[str, tuple[Form, Score]] = {
        "shipped": (made["the answer"], shipped),
        "share of words, by rarity": (made["the answer"], shared_words),
        "longest phrase, by rarity": (made["the answer"], longest_phrase),
        "cosine of answer and memory": (made["the answer"], cosine),
        "rank in the recall": (made["the answer"], place),
        "request and answer in one sentence": (one_sentence, shipped),
        "the same, counting the request's words": (one_sentence, keeping_request),
    }
    for name, (form, score) in signals.items():
        figures = scored(found, stores, form, score)
        least = figures.least_with(0.8)
        yield _row(name, ["none"] + ["-"] * 6 if least is None else [f"{least:.2f}", *figures.cells(least)])


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"


def page(lines: Iterable[str], machine: Mapping[str, str], now: datetime) -> str:
    """Return the contents of attribution.md."""
    head = [
        "# Attribution from a run's words",
        "",
        f"Written by `python -m ops.bench.attribution` on {now:%Y-%m-%d}. It applies",
        "`memory_agent/learning/attribution.py` to answers of the shipped recall on LoCoMo, conversations 0 to 4,",
        "categories 1 to 4. A memory counts as named if its score reaches the threshold. Precision is the share of",
        "the named memories that were used. Found is the share of the used memories that were named. The threshold",
        f"was tuned on conversations 0 to 2; unless stated otherwise, it is {THRESHOLD:g}.",
        "",
        "; ".join(f"{name}: {value}" for name, value in machine.items()) + ".",
        "",
    ]
    return "\n".join([*head, *lines]) + "\n"


def main(arguments: list[str]) -> int:
    """Measure the given files and write attribution.md."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    lines = list(locomo_lines(Path(arguments[0])))
    lines += [line for file in arguments[1:] for line in airline_lines(Path(file))]
    PAGE.write_text(page(lines, describe_machine(), datetime.now(UTC)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
