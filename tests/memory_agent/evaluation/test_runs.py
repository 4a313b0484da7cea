"""A dataset is ingested once and queried several times, each time from the same state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from memory_agent.evaluation import Dataset, History, Item, Plan, Question, Run, summarise
from memory_agent.evaluation.runs import Prepared, ingested, run_embedded
from memory_agent.settings import EmbedderSettings, RecallSettings, Settings
from sona import WARM_UP

DAY = datetime(2026, 2, 16, tzinfo=UTC)
TEXTS = (
    "The kiln in the garage is hot", "Norway has long fjords", "The cello needs a new string",
    "The parser fails on tabs", "Staging needs the VPN", "Lunch is at noon on Fridays",
)  # fmt: skip


def quiet(_what: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def history(user: str) -> History:
    """Return a history with so many questions that a run would affect the next one if state persisted."""
    items = tuple(
        Item(id=f"i{place}", text=text, timestamp=DAY, session=f"s{place // 3}") for place, text in enumerate(TEXTS)
    )
    questions = tuple(
        Question(id=f"{user}:{number}", text=f"{text}, part {number}?", category="all", relevant={f"i{place}": 1})
        for number, (place, text) in enumerate(list(enumerate(TEXTS)) * (WARM_UP // len(TEXTS) + 1))
    )
    return History(user=user, items=items, questions=questions)


@pytest.fixture(scope="module")
def plan() -> Plan:
    dataset = Dataset(name="own", digest="d", histories=(history("a"), history("b")))
    settings = Settings(embedder=EmbedderSettings(allow_download=False))
    return Plan(dataset=dataset, settings=settings, mode="hybrid", top_k=5)


@pytest.fixture(scope="module")
def prepared(plan: Plan) -> Iterator[Prepared]:
    with ingested(plan, quiet) as prepared:
        yield prepared


def answers(run: Run) -> list[object]:
    return [(answer.question.id, answer.ranked, answer.metrics) for answer in run.answers]


def with_recall(plan: Plan, recall: RecallSettings) -> Plan:
    return replace(plan, settings=msgspec.structs.replace(plan.settings, recall=recall))


def test_every_run_starts_from_the_state_that_ingest_left(prepared: Prepared, plan: Plan) -> None:
    first = prepared.ask(plan, quiet)
    prepared.ask(with_recall(plan, RecallSettings(vector_weight=0.1)), quiet)
    assert answers(prepared.ask(plan, quiet)) == answers(first)
    assert first.memories == 2 * len(TEXTS)


def test_the_settings_of_the_run_rank_it(prepared: Prepared, plan: Plan) -> None:
    shipped = prepared.ask(plan, quiet)
    words_only = prepared.ask(with_recall(plan, RecallSettings(vector_weight=0.0, contiguity=0.0)), quiet)
    assert answers(words_only) != answers(shipped)
    assert words_only.plan.settings.recall.vector_weight == 0.0


def test_a_run_may_choose_histories_mode_and_depth(prepared: Prepared, plan: Plan) -> None:
    chosen = replace(plan, dataset=plan.dataset.only({"b"}), mode="lexical", top_k=1)
    run = prepared.ask(chosen, quiet)
    assert {answer.user for answer in run.answers} == {"b"}
    assert {len(answer.ranked) for answer in run.answers} == {1}
    assert summarise(run).mode == "lexical"
    assert run.memories == len(TEXTS)


def test_a_run_leaves_no_trace_in_the_ingested_folder(prepared: Prepared, plan: Plan) -> None:
    before = sorted(
        (path.relative_to(prepared.data_dir), path.stat().st_mtime_ns)
        for path in prepared.data_dir.rglob("*")
        if path.is_file()
    )
    prepared.ask(plan, quiet)
    after = [(path, (prepared.data_dir / path).stat().st_mtime_ns) for path, _ in before]
    assert after == before


def test_run_embedded_equals_ingesting_and_asking(prepared: Prepared, plan: Plan, tmp_path: Path) -> None:
    run = run_embedded(replace(plan, data_dir=tmp_path), quiet)
    assert answers(run) == answers(prepared.ask(plan, quiet))
    assert (run.embedded, run.settings_known, run.model) == (True, True, prepared.embedder.info.stamp)
    assert (tmp_path / "users" / "own-a").is_dir()


def test_averages_are_over_questions_of_all_users(prepared: Prepared, plan: Plan) -> None:
    run = prepared.ask(plan, quiet)
    report = summarise(run)
    at_1 = [answer.metrics["recall@1"] for answer in run.answers]
    assert report.recall_at["1"] == pytest.approx(sum(at_1) / len(at_1), abs=1e-4)
    assert (report.questions, report.conversations, report.events) == (len(at_1), 2, 2 * len(TEXTS))


def test_answers_with_too_few_sessions_are_counted(prepared: Prepared, plan: Plan) -> None:
    shallow = summarise(prepared.ask(replace(plan, top_k=1), quiet))
    assert shallow.answers_short_of_sessions == shallow.questions
    assert summarise(prepared.ask(replace(plan, top_k=len(TEXTS)), quiet)).answers_short_of_sessions == 0


def one_user(items: tuple[Item, ...], question: Question) -> Plan:
    dataset = Dataset(name="own", digest="d", histories=(History(user="a", items=items, questions=(question,)),))
    return Plan(
        dataset=dataset, settings=Settings(embedder=EmbedderSettings(allow_download=False)), mode="hybrid", top_k=5
    )


def test_an_item_in_the_words_of_the_question_is_an_answer_however_new_it_is() -> None:
    item = Item(id="i1", text="Why does the kiln not heat?", session="s1")
    question = Question(id="q", text=item.text, category="all", relevant={"i1": 1})
    (answer,) = run_embedded(one_user((item,), question), quiet).answers
    assert answer.metrics["recall@5"] == 1.0


def test_a_memory_of_several_items_is_credited_with_all_of_them() -> None:
    text = "The nightly deploy of the billing service failed: no VPN"
    items = tuple(Item(id=f"i{n}", text=text, timestamp=DAY, session=f"s{n}") for n in range(3))
    question = Question(id="q", text="why did the deploy fail?", category="all", relevant={"i0": 1, "i1": 1, "i2": 1})
    (answer,) = run_embedded(one_user(items, question), quiet).answers
    shown = [id_ for id_, _ in answer.ranked]
    stood_for = [id_ for others in answer.same.values() for id_, _ in others]
    assert sorted(shown + stood_for) == ["i0", "i1", "i2"]
    assert len(shown) == 1
    assert (answer.metrics["recall@1"], answer.metrics["session_recall@5"]) == (1, 1)


@pytest.mark.parametrize(("asked_at", "first"), [(DAY + timedelta(days=7), "late"), (DAY, "early")])
def test_last_week_is_the_one_before_the_question_was_asked(asked_at: datetime, first: str) -> None:
    items = (
        Item(id="early", text="Deployed the billing service to staging", timestamp=DAY - timedelta(days=5)),
        Item(id="late", text="Deployed the search service to staging", timestamp=DAY + timedelta(days=2)),
    )
    question = Question(
        id="q", text="what did we deploy last week?", category="all", relevant={first: 1}, asked_at=asked_at
    )
    (answer,) = run_embedded(one_user(items, question), quiet).answers
    assert answer.ranked[0][0] == first
