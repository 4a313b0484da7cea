"""The page on what follows runs: planted behaviour is found, that of the control is not, and chance is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memory_agent.embedders import open_embedder
from memory_agent.evaluation import Question
from memory_agent.settings import EmbedderSettings
from ops.bench.implicit import Judged, agreement, by_chance, pairs, simulated, within
from ops.lab.airline import RecordedRun
from ops.lab.planning import RunFigures
from ops.lab.stores import CachingEmbedder

WISHES = ("cancel my flight to Oslo", "change the seat on my train", "order a new library card", "refund my ticket")
WORDINGS = ("Please {}", "I want to {}", "Can you {} today")


@pytest.fixture(scope="module")
def embedder() -> Iterator[CachingEmbedder]:
    real = open_embedder(EmbedderSettings(allow_download=False))
    yield CachingEmbedder(real)
    real.close()


def runs() -> list[RecordedRun]:
    """Three runs of each task; those of every other task succeeded."""
    return [
        RecordedRun(
            task=task,
            trial=trial,
            succeeded=task % 2 == 0,
            request=wording.format(wish),
            steps=(("worker.report.received", f"Looked up what it takes to {wish}"),),
            ending=f"That is what was done to {wish}",
        )
        for task, wish in enumerate(WISHES)
        for trial, wording in enumerate(WORDINGS)
    ]


def test_agreement_is_the_share_of_pairs_in_the_right_order() -> None:
    judged = [Judged(0.7, True, False, "a"), Judged(0.8, False, True, "b"), Judged(0.8, False, False, "c")]
    found = agreement(judged)
    assert (found.auc, found.signs, found.runs) == (0.75, 1, 3)
    assert found.low <= 0.75 <= found.high


def test_customers_who_repeat_themselves_after_failures_are_found(embedder: CachingEmbedder) -> None:
    turns = [[run.request, "What is the weather in Rome" if run.succeeded else f"{run.request}!!"] for run in runs()]
    assert agreement(within(runs(), turns, embedder)).auc == 1.0


def test_later_runs_of_a_task_tell_how_it_ends(embedder: CachingEmbedder) -> None:
    found = agreement(pairs(runs(), embedder))
    assert (found.auc, found.runs) == (1.0, 24)
    assert agreement(pairs(runs(), embedder, seed=1)).auc < 1.0


def test_users_who_ask_again_move_what_worked_forward(embedder: CachingEmbedder) -> None:
    first = RunFigures._fields.index("succeeded_1")
    told, control = (simulated(runs(), embedder, 0, control=control) for control in (False, True))
    assert told.without.shape == told.counted.shape == (12, len(RunFigures._fields))
    assert told.counted[:, first].mean() >= told.without[:, first].mean()
    assert agreement(told.judged).auc > max(agreement(control.judged).auc, 0.5)


def test_signs_between_questions_with_and_without_common_evidence_are_told_apart(embedder: CachingEmbedder) -> None:
    texts = {"Where did Ann buy her red bicycle?": "a", "In which shop did Ann buy her red bicycle?": "a"}
    questions = [
        Question(id=str(place), text=text, category="x", relevant={evidence: 1})
        for place, (text, evidence) in enumerate(texts.items())
    ]
    told = by_chance([questions], embedder)
    assert (told.questions, told.found["asked_again"], told.false["asked_again"]) == (2, 1, 0)
    apart = [questions[0], Question(id="1", text=questions[1].text, category="x", relevant={"b": 1})]
    assert by_chance([apart], embedder).false["asked_again"] == 1
