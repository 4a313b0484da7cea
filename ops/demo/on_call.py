"""The learning scene: carol's agent recalls before it plans, then reports which memories it used and how the run ended.

The demo does not open the learner's gate; the evidence does.
"""

from __future__ import annotations

from collections.abc import Sequence

from memory_agent import RecallResult, RetrievedMemory
from memory_agent.records.trajectories import GateState, SonaStatus, Trajectory
from ops.demo.recurring import Page
from ops.demo.screen import how_it_ended
from ops.demo.stage import DEADLINE_MS, PATIENCE_S, Stage, wait_until
from ops.demo.standings import Standings, by_likeness, progress, raised, rank_of, reasons
from ops.demo.story import Event
from relay import Publisher

_TOP_K = 5
_PAGES_BETWEEN: dict[GateState, int] = {"shadow": 10, "trial": 3, "on": 10, "off": 10}
"""The number of pages between checks of the gate, by its state."""
_MOST_TRIES = 40


def learn_for_three_weeks(stage: Stage) -> None:
    """Publish past runs, then the pages one by one; recall once more, and show what changed and why."""
    story = stage.recurring
    with Publisher(stage.endpoint("relay")) as publisher:
        _publish(stage, publisher, story.past_events(stage.now))
        stage.screen.say(
            f"A page is an alert for {story.user}'s agent. There are {sum(story.pages_per_week)} pages of "
            f"{len(story.kind)} kinds, each worded differently. Her memory contains {len(story.run)} past runs: "
            "for most kinds, one that resembles the page but did not help, and one that helped. The agent recalls "
            "before it plans, uses the successful run if it is shown, and reports the outcome."
        )
        threshold = stage.client(story.user).sona.status().gate.threshold
        stage.screen.gap()
        stage.screen.say(
            f"Learning is allowed to change answers once a bet on its success has grown from 1 to {threshold:g}. "
            f"If learning does not help, at most one bet in {threshold:g} grows that far.",
            "dim",
        )
        standings, status = _go_through_pages(stage, publisher)
        _show_weeks(stage, standings, status)
        _look_closely(stage, publisher)
    _show_status(stage)
    _show_pattern(stage)


def _go_through_pages(stage: Stage, publisher: Publisher) -> tuple[Standings, SonaStatus]:
    """Recall for each page and publish its run; show the gate when its state changes, and after each week."""
    story, standings = stage.recurring, Standings()
    client, pages = stage.client(story.user), story.pages()
    status = client.sona.status()
    waiting: list[Event] = []
    last_look = 0
    for done, page in enumerate(pages, 1):
        result = client.recall(page.text, _TOP_K, deadline_ms=DEADLINE_MS)
        standings.count(page, result.memories)
        waiting += story.page_events(page, stage.now, result.recall_id, _used(stage, page, result))
        is_last = done == len(pages) or pages[done].week != page.week
        if done - last_look >= _PAGES_BETWEEN[status.gate.state] or is_last:
            _publish(stage, publisher, waiting)
            before, status, waiting, last_look = status, client.sona.status(), [], done
            if status.gate.state != before.gate.state or is_last:
                stage.screen.say(progress(page.week, done, status))
    return standings, status


def _show_weeks(stage: Stage, standings: Standings, status: SonaStatus) -> None:
    stage.screen.gap()
    stage.screen.say(
        "How often the successful run ranked first; in parentheses: with the same answers ranked by similarity", "dim"
    )
    stage.screen.table(standings.rows(), header=("", "all pages", "similarity misleads", "similarity helps"))
    stage.screen.say("similarity misleads: the past run most similar to the page is not the successful one", "dim")
    led, by_likeness_alone = standings.led(3)
    stage.screen.promise(
        "the gate opened because the learned ranking won comparisons, not because of a setting",
        status.gate.state == "on" and status.mode == "auto",
    )
    stage.screen.promise(
        "over all pages of week three, it ranked first more than twice as often as by similarity alone",
        led > 2 * by_likeness_alone,
    )


def _look_closely(stage: Stage, publisher: Publisher) -> None:
    """Recall for the final page, compare the answer with the similarity order, and publish an approved run."""
    story = stage.recurring
    page = story.final_page()
    stage.screen.request(f"week three: {story.user}'s agent is paged and has not planned yet", page.text)
    result, asked = _ask_the_learned(stage, page)
    if asked > 1:
        others = "the other answers used the usual ranking, or both, to continue the comparison"
        stage.screen.say(f"recalled {asked} times: {others}", "dim")
    _show_ranking(stage, result.memories)
    _show_why(stage, page, result.memories)
    used = _used(stage, page, result)
    _publish(stage, publisher, story.final_events(stage.now, result.recall_id, used))
    run = stage.client(story.user).runs.get(page.id)
    stage.screen.promise(
        f"the agent planned with this run and cited it; {page.id} was approved (1.0) and is now a lesson",
        run is not None and run.quality == 1.0 and _cited(run) == set(used) != set(),
    )


def _ask_the_learned(stage: Stage, page: Page) -> tuple[RecallResult, int]:
    """Recall until the learned ranking is used; return the answer and the number of recalls."""
    client = stage.client(stage.recurring.user)
    for asked in range(1, _MOST_TRIES):
        result = client.recall(page.text, _TOP_K, deadline_ms=DEADLINE_MS)
        if all(memory.explanation["arm"] == "learned" for memory in result.memories):
            return result, asked
    return client.recall(page.text, _TOP_K, deadline_ms=DEADLINE_MS), _MOST_TRIES


def _show_ranking(stage: Stage, shown: Sequence[RetrievedMemory]) -> None:
    before = by_likeness(shown)
    stage.screen.listing(
        ("now", "by similarity", "raised by", "how it ended", "run and text"),
        [
            (
                f"{place}",
                f"{before.index(memory) + 1}",
                f"{raised(memory):+.2f}",
                how_it_ended(memory),
                f"{memory.record.run_id} {memory.record.text}",
            )
            for place, memory in enumerate(shown, 1)
        ],
    )


def _show_why(stage: Stage, page: Page, shown: Sequence[RetrievedMemory]) -> None:
    kind, best, before = page.kind, shown[0], by_likeness(shown)
    stage.screen.promise(
        f"{kind.worked}, which worked, ranks above {kind.closest}, which is most similar",
        rank_of(kind.worked, shown) == 1 and rank_of(kind.closest, before) == 1,
    )
    requests = {other.id: other for other in stage.recurring.pages()}
    for line in reasons(best, {name: other.text for name, other in requests.items()}):
        stage.screen.say(f"  {line}")
    causes = [requests.get(cause["trajectory_id"]) for cause in best.explanation["caused_by"]]
    stage.screen.promise(
        "the explanation names the reason: a past run for the same kind of incident used it, and how that run ended",
        bool(causes) and all(cause is not None and cause.kind == kind for cause in causes),
    )


def _show_status(stage: Stage) -> None:
    user = stage.recurring.user
    status = stage.client(user).sona.status()
    story = stage.recurring
    stage.screen.gap()
    stage.screen.say(f"$ memory-agent sona status --user {user}", "bold")
    stage.screen.say(
        f"{status.trajectories} runs: {len(story.run)} past runs, {sum(story.pages_per_week)} pages and the last one; "
        f"{status.credited} of them used a memory"
    )
    if status.gain is not None and status.gain_low is not None and status.gain_high is not None:
        share, low, high = (100 * (0.5 + gain) for gain in (status.gain, status.gain_low, status.gain_high))
        stage.screen.say(
            f"in answers that mixed both orders, runs used the memory that learning ranked higher in {share:.0f} % "
            f"(chance: 50 %; 95 % interval: {low:.0f} to {high:.0f} %)"
        )


def _show_pattern(stage: Stage) -> None:
    """Wait until upkeep has derived a pattern from recurring runs, and show it."""
    story = stage.recurring
    wait_until(lambda: bool(stage.patterns(story.user)))
    record = stage.patterns(story.user)[0].record
    stage.screen.block(f"a memory derived from {record.metadata['runs']} of her runs", record.text)
    stage.screen.promise(
        "recurring work becomes a pattern, which counts and quotes its runs: " + ", ".join(record.metadata["run_ids"]),
        record.kind == "pattern" and set(record.metadata["run_ids"]) <= {run.id for run in story.run},
    )


def _publish(stage: Stage, publisher: Publisher, events: Sequence[Event]) -> None:
    """Publish through the relay, and wait until every event has been handled."""
    for event in events:
        publisher.publish(event)
    publisher.flush(PATIENCE_S)
    stage.published += len(events)
    stage.wait_until_handled()


def _used(stage: Stage, page: Page, result: RecallResult) -> list[str]:
    cited = stage.recurring.cited(page, result.memories)
    return [] if cited is None else [cited.record.id]


def _cited(run: Trajectory) -> set[str]:
    return {used.record_id for used in run.used if used.how == "event"}
