"""The scene in which a user shares what worked. Others find it, their runs raise its score, and finally it is
unpublished."""

from __future__ import annotations

from memory_agent import MemoryFilter, RecallResult
from memory_agent.records.memories import RetrievedMemory
from memory_agent.records.shared import GlobalRecord
from ops.demo.stage import DEADLINE_MS, HEROINE, OTHER, Stage, wait_until

_NAME = "Alice of payments"
_TITLE = "Logged out while paying, with two tabs open"
_OWN = "Two tabs logged me out while I paid; signing in again did not help"
_USERS = tuple(f"user-{number}" for number in range(1, 11))
_TOGETHER = 5
_CONTEXT_TOKENS = 200


def share_what_worked(stage: Stage) -> None:
    """Publish the memory that helped with the first request, have others find, use and rate it, and unpublish it."""
    question = stage.story.request[0].text
    item = _publish(stage)
    stage.client(OTHER).remember(_OWN)
    stage.screen.say(f"{OTHER} has noted: {_OWN}")
    found = _asked(stage, OTHER, question)
    stage.screen.request(f"{OTHER} repeats {HEROINE}'s request of three weeks ago, recalling from both tiers", question)
    stage.screen.answer(found, stage.now)
    stage.screen.promise(
        f"{OTHER}'s own memory comes first, followed by the item that {HEROINE} shared, with her chosen name",
        [memory.tier for memory in found.memories[:2]] == ["local", "global"] and _shared(found, item) is not None,
    )
    stage.screen.block(f"what {OTHER}'s planner receives", found.context or "")
    before = _shared(found, item)
    for number, user in enumerate(_USERS, 1):
        result = _asked(stage, user, question)
        stage.client(user).feedback(result.recall_id, used=[item.id], quality=1.0)
        stage.client(user).shared.rate(item.id, 0.9)
        if number % _TOGETHER == 0:
            wait_until(lambda told=number: _told_of(stage) == told)  # the daemon's upkeep does this
    after = _shared(_asked(stage, OTHER, question), item)
    metrics = stage.client().shared.published()[0].quality_metrics
    stage.screen.say(
        f"{len(_USERS)} more users used it: {metrics.distinct_users}+ people, "
        f"mean {metrics.avg_trajectory_score:.2f}, rated {metrics.user_rating:.2f}"
    )
    stage.screen.promise(
        "only counts and sums left the users' stores, and the figures change only after five more users",
        metrics.distinct_users == metrics.raters == len(_USERS),
    )
    raised = 0.0 if before is None or after is None else after.sona_score - before.sona_score
    stage.screen.promise(
        f"successful use raised its score for everyone by {raised:.3f} (at most 0.050)",
        0.0 < raised <= 0.0501,
    )
    block = _asked(stage, OTHER, question).context or ""
    stage.screen.block(f"what {OTHER}'s planner receives now", block)
    _unpublish(stage, item, question)


def _told_of(stage: Stage) -> int:
    """Return the number of users counted in both the item's quality and its rating."""
    metrics = stage.client().shared.published()[0].quality_metrics
    return min(metrics.distinct_users, metrics.raters)


def _publish(stage: Stage) -> GlobalRecord:
    alice = stage.client()
    request = stage.story.request[0]
    of_run = MemoryFilter(run_id=request.expects, sources=("worker_result", "trajectory_outcome"))
    memory = alice.recall(request.text, 1, of_run, deadline_ms=DEADLINE_MS, min_relevance=0.0).memories[0].record
    alice.shared.set_name(_NAME)
    preview = alice.shared.preview(_TITLE, memory_id=memory.id)
    leaves = f"{preview.content.title}\n{preview.content.summary}"
    stage.screen.block(f"what would leave {HEROINE}'s memory, verbatim: title and summary", leaves)
    item = alice.shared.confirm(preview)
    stage.screen.promise(
        "exactly the previewed text was published, with the name that she chose and without her user id",
        (item.title, item.summary) == (preview.content.title, preview.content.summary)
        and item.author.startswith(_NAME)
        and HEROINE not in (item.author, item.author_id)
        and item.id != memory.id,
    )
    return item


def _unpublish(stage: Stage, item: GlobalRecord, question: str) -> None:
    stage.client().shared.unpublish(item.id)
    gone = _asked(stage, OTHER, question)
    stage.screen.promise(
        f"{HEROINE} unpublished it, and it is no longer in any answer",
        _shared(gone, item) is None and not gone.degraded and not stage.client(OTHER).shared.search(question),
    )


def _asked(stage: Stage, user: str, question: str) -> RecallResult:
    return stage.client(user).recall(
        question, deadline_ms=DEADLINE_MS, tiers=("local", "global"), context_tokens=_CONTEXT_TOKENS
    )


def _shared(result: RecallResult, item: GlobalRecord) -> RetrievedMemory | None:
    return next((found for found in result.memories if found.record.id == item.id), None)
