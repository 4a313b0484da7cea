"""Test simulated users with recurring work, and the figures measured on them, with the real memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from memory_agent.embedders import open_embedder
from memory_agent.evaluation import History, Item, Question
from memory_agent.settings import EmbedderSettings, Settings
from ops.lab.course import Figures, Setup
from ops.lab.recurring_users import RUNS, Lived, UserJob, jobs, run_job, summarise
from ops.lab.report import targets
from ops.lab.stores import CachingEmbedder, ingest_all

DAY = datetime(2024, 2, 16, tzinfo=UTC)
THINGS = (
    "kiln", "cello", "parser", "gateway", "ledger", "fjord", "oven", "printer", "compiler", "kitchen", "garden",
    "invoice", "database", "bicycle", "telescope", "violin", "warehouse", "scanner", "heating", "library",
)  # fmt: skip
GOOD, POOR = Figures(1.0, 1.0, 1.0, 1.0), Figures(0.0, 1.0, 1.0, 0.5)


def history(things: tuple[str, ...] = THINGS) -> History:
    items = tuple(
        Item(id=f"{thing}-{kind}", text=text.format(thing), timestamp=DAY, session=kind)
        for thing in things
        for kind, text in (("note", "To repair the {}, change its fuse"), ("talk", "The {} is broken, who can help?"))
    )
    questions = tuple(
        Question(
            id=f"{thing}:{asked}", text=text.format(thing), category="1", relevant={f"{thing}-note": 1}, asked_at=DAY
        )
        for thing in things
        for asked, text in enumerate(("who can help, the {} is broken", "why is the {} broken?"))
    )
    return History(user="one", items=items, questions=questions)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    settings = Settings(embedder=EmbedderSettings(allow_download=False))
    own = open_embedder(settings.embedder)
    embedder = CachingEmbedder(own)
    stores = ingest_all(
        {"one": history().events("one")}, settings, tmp_path_factory.mktemp("u"), embedder, lambda *_: None
    )
    yield Setup(stores, embedder, shown=10)
    own.close()


def test_the_gate_of_a_user_whose_work_recurs_opens_and_what_recurs_is_found_first(setup: Setup) -> None:
    lived = run_job(setup, UserJob(0, 0, history(), "cite"))
    assert lived.opened_at is not None
    assert lived.opened_at <= RUNS
    assert len(lived.again) == 6
    gained = [learned.mrr - usual.mrr for learned, usual in lived.again]
    assert sum(gained) > 0


def test_the_same_user_lives_the_same_runs(setup: Setup) -> None:
    job = UserJob(1, 1, history(), "shuffled cite")
    one, other = run_job(setup, job), run_job(setup, job)
    assert (one.credited, one.opened_at) == (other.credited, other.opened_at)


def test_conversations_with_few_questions_have_no_such_users() -> None:
    assert jobs([history(THINGS[:19])], ("cite",), range(3)) == []
    found = jobs([history()], ("oracle", "cite"), range(3))
    assert {job.signal for job in found} == {"cite"}
    assert len({(job.seed, job.number) for job in found}) == len(found) == 12


def lived(user: str, opened_at: int | None, again: Figures = GOOD) -> Lived:
    both = ((again, POOR),)
    return Lived(signal="cite", user=user, credited=40, opened_at=opened_at, again=both, new=((POOR, POOR),))


def test_users_are_counted_by_when_their_gate_opened() -> None:
    (found,) = summarise([lived("a", 12), lived("b", 50), lived("c", None, POOR), lived("c", 21)])
    assert (found.users, found.opened_early, found.opened, found.opened_at) == (4, 1, 3, (12, 21, 50))
    assert found.again["recall_at_1"].mean == pytest.approx(0.75)
    assert found.new["recall_at_1"].mean == 0.0
    reached = {target.name: target.reached for target in targets([], [], [], [], [], [found])}
    assert reached["recurring work, cite: gate open by run 20"] is True
    assert reached["recurring work, cite: recall at 5 of recurring topics after 50 runs"] is False
