"""Reports on the use of shared items, from a recall to the released figures: each use counts once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from served_host import absent_embedder

from memory_agent import Memory
from memory_agent.errors import UnavailableError
from memory_agent.knowledge import Knowledge
from memory_agent.records.shared import GlobalRecord
from memory_agent.records.shared_requests import (
    AnySharedRequest,
    Caller,
    ForgetUser,
    PendingItems,
    Report,
    ReportedItem,
    Rights,
    SearchItems,
)

QUESTION = "what does staging need?"
BOTH = ("local", "global")


class Between:
    """A memory's connection to the store: records requests, and fails on demand."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self.reports: list[Report] = []
        self.is_lost = False
        self.is_away = False

    def ask(self, caller: Caller, ask: AnySharedRequest, timeout_s: float) -> Any:
        if self.is_away:
            raise UnavailableError("away")
        answer = self._knowledge.ask(caller, ask, timeout_s)
        if isinstance(ask, Report):
            self.reports.append(ask)
            if self.is_lost:
                raise UnavailableError("the answer was lost")
        return answer

    def keep_up(self) -> None:
        """Release the figures that are due, as upkeep does."""
        self._knowledge.expire()

    def begin_search(self, caller: Caller, ask: SearchItems, timeout_s: float) -> PendingItems:
        return self._knowledge.begin_search(caller, ask, timeout_s)


Open = Callable[[str], Memory]


@pytest.fixture
def between(tmp_path: Path) -> Iterator[Between]:
    with absent_embedder(tmp_path) as embedder, Knowledge.open(tmp_path / "shared", embedder=embedder) as knowledge:
        yield Between(knowledge)


@pytest.fixture
def opened(tmp_path: Path, between: Between) -> Iterator[Open]:
    """Return a function that opens memories without a model, so recalls search by words."""
    with absent_embedder(tmp_path) as embedder, ExitStack() as stack:
        yield lambda user: stack.enter_context(Memory.open(tmp_path / user, embedder=embedder, shared=between))


def published(memory: Memory, **fields: Any) -> GlobalRecord:
    return memory.shared.confirm(
        memory.shared.preview("Staging needs the VPN", "Connect first", **{"access_policy": "public", **fields})
    )


def recalled(memory: Memory) -> str:
    result = memory.recall(QUESTION, tiers=BOTH, min_relevance=0.0)
    assert [found.tier for found in result.memories] == ["global"]
    return result.recall_id


def used(memory: Memory, item: GlobalRecord, quality: float = 1.0) -> None:
    assert memory.feedback(recalled(memory), used=[item.id], quality=quality).credited == (item.id,)


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)


def test_five_users_make_the_figures_and_the_author_does_not_count(opened: Open, between: Between) -> None:
    author = opened("author")
    item = published(author)
    for number in range(4):
        used(user := opened(f"user-{number}"), item)
        assert user.shared.report(soon()) == 1
    assert author.recall(QUESTION, tiers=BOTH, min_relevance=0.0).memories == ()  # excludes the caller's own items
    own = ReportedItem(item_id=item.id, version="1", retrievals=1, uses=1, quality=1.0)
    assert between.ask(Caller(user_id="author"), Report(number=1, items=(own,)), 8.0) == 0
    between.keep_up()
    assert author.shared.published()[0].quality_metrics.distinct_users == 0
    used(fifth := opened("user-4"), item)
    fifth.shared.report(soon())
    assert author.shared.published()[0].quality_metrics.distinct_users == 0  # until upkeep
    between.keep_up()
    figures = author.shared.published()[0].quality_metrics
    assert (figures.distinct_users, figures.used_count, figures.usage_count) == (5, 5, 5)
    assert figures.avg_trajectory_score is not None
    assert figures.avg_trajectory_score > 0.6


def test_items_of_an_organisation_get_figures_although_upkeep_has_no_key(opened: Open, between: Between) -> None:
    acme = Rights(groups=("org:acme",))
    author = opened("author").with_rights(acme)
    item = published(author, access_policy="org:acme")
    for number in range(5):
        user = opened(f"user-{number}")
        used(user.with_rights(acme), item)
        assert user.shared.report(soon()) == 1
    between.keep_up()
    assert author.shared.published()[0].quality_metrics.distinct_users == 5


def test_a_report_has_counts_and_sums_of_what_was_shown_and_used_and_nothing_else(
    opened: Open, between: Between
) -> None:
    item = published(opened("author"))
    memory = opened("user")
    run = memory.runs.begin("Deploy to staging", run_id="run-of-mine", session_id="session-of-mine")
    first = memory.recall(QUESTION, tiers=BOTH, min_relevance=0.0, by_run=run.id)
    memory.recall(QUESTION, tiers=BOTH, min_relevance=0.0)
    memory.runs.step(run.id, "Connected the VPN", [item.id])
    memory.runs.end(run.id, quality=0.75)
    assert first.memories
    memory.shared.report(soon())
    (report,) = between.reports
    assert report.items == (ReportedItem(item_id=item.id, version="1", retrievals=2, uses=1, quality=0.75),)
    assert set(msgspec.to_builtins(report)) == {"type", "number", "items"}


def test_items_not_shown_and_runs_without_quality_are_not_reported_as_used(opened: Open, between: Between) -> None:
    author = opened("author")
    item, other = published(author), published(author)
    memory = opened("user")
    run = memory.runs.begin("Deploy to staging")
    memory.runs.step(run.id, "Connected the VPN", [other.id])  # no recall of this run returned the item
    memory.runs.end(run.id, quality=1.0)
    memory.recall("VPN of staging", top_k=1, tiers=BOTH, min_relevance=0.0, filter={"tags": ["none"]})
    open_run = memory.runs.begin("Deploy again")
    memory.recall(QUESTION, top_k=5, tiers=BOTH, min_relevance=0.0, by_run=open_run.id)
    memory.runs.step(open_run.id, "Connected the VPN", [item.id])
    memory.shared.report(soon())
    assert {one.uses for report in between.reports for one in report.items} == {0}


def test_a_report_is_repeated_until_it_is_answered_and_counts_once(
    opened: Open, between: Between, tmp_path: Path
) -> None:
    item = published(opened("author"))
    memory = opened("user")
    used(memory, item)
    between.is_away = True
    with pytest.raises(UnavailableError):
        memory.shared.report(soon())
    between.is_away, between.is_lost = False, True
    with pytest.raises(UnavailableError):
        memory.shared.report(soon())
    memory.close()
    between.is_lost = False
    again = opened("user")
    time.sleep(1)  # makes this use later than the first report
    used(again, item)  # the next report contains this use
    assert again.shared.report(soon() + timedelta(seconds=5)) == 1
    assert again.shared.report(soon() + timedelta(seconds=10)) == 1
    first, repeated, second = between.reports
    assert first == repeated
    assert (first.number, second.number) == (1, 2)
    assert [one.uses for one in (*first.items, *second.items)] == [1, 1]
    assert again.shared.report(soon() + timedelta(seconds=15)) == 0


def test_reports_continue_after_a_clock_was_ahead_and_are_not_repeated_after_it_steps_back(
    opened: Open, between: Between
) -> None:
    item, memory = published(opened("author")), opened("user")
    used(memory, item)
    assert memory.shared.report(soon()) == 1
    assert memory.shared.report(soon() - timedelta(seconds=30)) == 0  # the clock stepped back
    assert memory.shared.report(soon()) == 0
    assert memory.shared.report(soon() + timedelta(days=400)) == 0
    used(memory, item)
    assert memory.shared.report(datetime.now(UTC) - timedelta(minutes=10)) == 0  # the clock is correct again
    used(memory, item)
    assert memory.shared.report(soon()) == 1
    assert [(report.number, sum(one.uses for one in report.items)) for report in between.reports] == [(1, 1), (2, 3)]


def test_a_report_skips_an_item_removed_meanwhile(opened: Open, between: Between) -> None:
    author, memory = opened("author"), opened("user")
    item = published(author)
    used(memory, item)
    author.shared.unpublish(item.id)
    assert memory.shared.report(soon()) == 1
    assert memory.shared.report(soon() + timedelta(seconds=5)) == 0


def test_a_user_has_one_rating_and_can_remove_it(opened: Open, between: Between) -> None:
    author = opened("author")
    item = published(author)
    raters = [opened(f"user-{number}") for number in range(5)]
    for rater in raters:
        rater.shared.rate(item.id, 0.1)
    for rater in raters:
        assert rater.shared.rate(item.id, 0.9).raters == 0  # until upkeep
    between.keep_up()
    figures = author.shared.published()[0].quality_metrics
    assert (figures.raters, figures.user_rating) == (5, pytest.approx(0.9, abs=0.2))
    raters[0].shared.rate(item.id, None)
    between.keep_up()
    assert author.shared.published()[0].quality_metrics.raters == 0  # four raters are left
    second = published(author, item_id=item.id, version="2")
    assert author.shared.published()[0].quality_metrics.raters == 0
    raters[0].shared.rate(second.id, 0.5, version="1")
    between.keep_up()
    assert raters[0].shared.rate(second.id, 0.5, version="1").raters == 0  # five changes are required
    for rater in raters[1:]:
        rater.shared.rate(second.id, 0.5, version="1")
    between.keep_up()
    last = raters[0].shared.rate(second.id, 0.5, version="1")
    assert (last.raters, last.user_rating) == (5, pytest.approx(0.5, abs=0.25))


def test_a_release_that_changes_no_figure_is_a_release(opened: Open, between: Between) -> None:
    """Otherwise, a later change by one user would be released on its own."""
    item = published(opened("author"))
    raters = [opened(f"user-{number}") for number in range(6)]

    def rate(memory: Memory, rating: float) -> None:
        memory.shared.rate(item.id, None)
        memory.shared.rate(item.id, rating)

    for rating in (1.0, 1.0):
        for rater in raters:
            rate(rater, rating)
        between.keep_up()
    before = opened("author-again").shared.rate(item.id, None)
    assert (before.raters, before.user_rating) == (5, 1.0)
    rate(raters[0], 0.0)
    between.keep_up()
    assert raters[0].shared.rate(item.id, 0.0) == before


def test_an_erasure_removes_a_user_from_the_figures(opened: Open, between: Between) -> None:
    author = opened("author")
    item = published(author)
    for number in range(5):
        used(user := opened(f"user-{number}"), item)
        user.shared.report(soon())
    between.keep_up()
    assert author.shared.published()[0].quality_metrics.distinct_users == 5
    between.ask(Caller(user_id="user-0"), ForgetUser(), 8.0)
    assert author.shared.published()[0].quality_metrics.distinct_users == 0
