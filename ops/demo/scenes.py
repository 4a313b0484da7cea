"""The demo's first scenes, in order. Each acts on the real daemon, shows the result, and checks it.

Scenes use the same client as planners do, and do not read the daemon's files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import psutil

from memory_agent import MemoryFilter, RecallResult, context_block
from memory_agent.cli.render import counted
from memory_agent.errors import MemoryAgentError
from ops.demo.senders import Sender, send_plainly
from ops.demo.stage import DEADLINE_MS, HEROINE, OTHER, PATIENCE_S, Stage, wait_until
from ops.demo.story import CONDUCTOR, PlannerRequest, Week, workers_of
from ops.process_memory import still_running

_FIRST_WEEKS: tuple[Week, ...] = (1, 2)
_LAST_WEEK: Week = 3
_SENT_AGAIN = 12
_PACE_MS = 12.0
_CONTEXT_TOKENS = 300
_ALL = 1_000

_PARTS = {
    "relay": "stores every event on disk, even while the daemon restarts",
    "embedder": "runs one model (all-MiniLM-L6-v2) for all users",
    "daemon": "answers requests, and has Ray start an actor for each active user",
}


def show_daemon(stage: Stage, took_s: float) -> None:
    """Show the running processes."""
    pids = {part.name: part.pid for part in stage.status().parts}
    stage.screen.say("$ memory-agent serve", "bold")
    stage.screen.say(f"ready in {took_s:.1f} s, with an empty folder")
    for name, text in _PARTS.items():
        stage.screen.say(f"{name:<9} pid {pids.get(name)}  {text}", "dim")
    stage.screen.promise("relay, embedder and daemon are separate processes", set(_PARTS) <= set(pids))


def publish_first_weeks(stage: Stage) -> None:
    """Publish two weeks of events from separate processes, including repeats, plain PUB messages and a malformed
    message."""
    events = stage.story.events(_FIRST_WEEKS, stage.now)
    with stage.senders(events, again={workers_of(OTHER): _SENT_AGAIN}) as senders:
        _show_senders(stage, senders)
        finished = [sender.finish() for sender in senders]
    stage.repeats += sum(sender.duplicates for sender in senders)
    stage.screen.promise("every event was acknowledged, and was synced to disk before its ack was sent", all(finished))
    stage.screen.promise(
        f"{OTHER}'s workers were restarted and resent their last {_SENT_AGAIN} events: all were recognised as repeats",
        stage.repeats == _SENT_AGAIN,
    )
    _publish_plainly(stage)
    stage.wait_until_handled()
    _show_kept(stage)


def ask_before_planning(stage: Stage) -> None:
    """Recall at three moments, with words that differ from the stored text; show one context block."""
    requests = [request for request in stage.story.request if request.after_week != _LAST_WEEK]
    for request in requests:
        result = _ask(stage, request)
        if stage.first_answer is None:
            stage.first_answer = result
            _show_context(stage, result)


def kill_in_the_middle(stage: Stage) -> None:
    """Kill the first user's actor while the events from week three are being published, and recall again."""
    host = f"user-{HEROINE}"
    victim = psutil.Process(stage.pid_of(host))
    with stage.senders(stage.story.events((_LAST_WEEK,), stage.now), pace_ms=_PACE_MS) as senders:
        _show_senders(stage, senders)
        workers = next(sender for sender in senders if sender.name == workers_of(HEROINE))
        wait_until(lambda: workers.acked >= workers.total // 2 or not workers.running)
        in_the_middle = workers.running
        victim.kill()
        killed_s = time.monotonic()
        stage.screen.say(f"$ kill -9 {victim.pid}", "bold red")
        stage.screen.say(
            f"{HEROINE}'s actor is dead; {workers.acked} of her workers' {workers.total} events are acknowledged"
        )
        answer = _first_answer_after_the_kill(stage)
        stage.screen.say(f"a recall sent immediately was answered {time.monotonic() - killed_s:.1f} s later")
        finished = [sender.finish() for sender in senders]
    stage.wait_until_handled()
    successor = stage.pid_of(host)
    stage.screen.promise("the emitters were still publishing, and received every ack", in_the_middle and all(finished))
    stage.screen.promise(
        f"a successor (pid {successor}) took over; the journal redelivered events that the killed actor had not stored",
        successor != victim.pid and not still_running([victim]),
    )
    stage.screen.promise(
        "all memories found by scene 3's first query are unchanged, and the best one is found again",
        _is_intact(stage) and _best(stage.first_answer) in [found.record.id for found in answer.memories],
    )
    for request in stage.story.request:
        if request.after_week == _LAST_WEEK:
            _ask(stage, request)


def ask_as_somebody_else(stage: Stage) -> None:
    """Repeat the first user's query as the other user; check that the answer contains no memory of the first user."""
    question = stage.story.request[0].text
    stage.screen.request(f"{OTHER} repeats {HEROINE}'s first request", question)
    shown = stage.client(OTHER).recall(question, _ALL).memories
    result = stage.client(OTHER).recall(question, _ALL, min_relevance=0.0)
    owners = {stage.story.owner_of(memory.record.run_id) for memory in result.memories}
    stage.screen.say(
        f"relevant: {counted(len(shown), 'memory', 'memories')}; without a relevance threshold, "
        f"{len(result.memories)} are returned"
    )
    stage.screen.promise(
        f"all {len(result.memories)} belong to {OTHER}: a memory never leaves its user's store", owners == {OTHER}
    )


def _show_senders(stage: Stage, senders: Sequence[Sender]) -> None:
    for sender in senders:
        who = "as `system`, for both users" if sender.name == CONDUCTOR else "as their user"
        events = counted(sender.total, "event")
        stage.screen.say(f"{sender.name:<16} pid {sender.pid}  {events:>10}, {who}", "dim")


def _publish_plainly(stage: Stage) -> None:
    events = stage.story.plain_events(stage.now)
    messages = [*map(json.dumps, events), stage.story.plain_pub.torn]
    heard = send_plainly(messages, stage.scratch, stage.endpoint("relay_pub"))
    stage.published += len(events)
    stage.torn += 1
    wait_until(lambda: stage.status().journal["counts"].get("pub_received", 0) >= len(messages))
    entries = stage.client().quarantined()
    stage.screen.promise(
        "an old tool sent plain ZeroMQ PUB: one malformed message was quarantined, and the others were accepted",
        heard and [entry.code for entry in entries] == ["malformed_event"],
    )
    for entry in entries:
        stage.screen.say(f"  quarantine entry {entry.id}: {entry.reason}", "dim")


def _show_kept(stage: Stage) -> None:
    for user in stage.story.users:
        stats = stage.client(user).stats()
        dropped = sum(stats.events_dropped.values())
        kept = counted(stats.memories, "memory", "memories")
        stage.screen.say(f"{user:<6} {kept}, {counted(dropped, 'event')} dropped as noise")
    planned = stage.client().recall(
        stage.story.request[0].text, _ALL, MemoryFilter(sources=("conductor_plan",)), min_relevance=0.0
    )
    owners = {stage.story.owner_of(memory.record.run_id) for memory in planned.memories}
    stage.screen.promise(
        "events that the conductor published as `system` were delivered to the owner of the run or session",
        owners == {HEROINE},
    )


def _show_context(stage: Stage, result: RecallResult) -> None:
    block = context_block(result, _CONTEXT_TOKENS, now=stage.now)
    stage.screen.block(f"what the planner receives: context_block(result, max_tokens={_CONTEXT_TOKENS})", block)
    _, _, *lines, end = block.splitlines()
    stage.screen.promise(
        "the planner receives whole memories, fenced as data, and the number of those omitted for lack of room",
        end == "</recalled_memories>"
        and lines[-1].endswith("no room")
        and any(line.startswith("| ") for line in lines),
    )


def _ask(stage: Stage, request: PlannerRequest) -> RecallResult:
    stage.screen.request(request.moment, request.text)
    kinds = MemoryFilter(kinds=tuple(request.kinds))
    result = stage.client(request.user).recall(request.text, request.top_k, kinds, deadline_ms=DEADLINE_MS)
    stage.screen.answer(result, stage.now)
    first = [memory.record.run_id for memory in result.memories[:3]]
    found = request.expects in first and not result.degraded
    stage.screen.promise(f"{request.expects}, the helpful run, is among the first three", found)
    return result


def _first_answer_after_the_kill(stage: Stage) -> RecallResult:
    """Retry a recall until it succeeds, as a planner unaware of the killed actor would."""
    request = stage.story.request[0]
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return stage.client().recall(request.text, request.top_k, deadline_ms=DEADLINE_MS)
        except MemoryAgentError as error:
            if not error.retryable or time.monotonic() > deadline_s:
                raise


def _is_intact(stage: Stage) -> bool:
    """Return whether the first answer's memories are still stored unchanged."""
    before = [found.record for found in stage.first_answer.memories] if stage.first_answer is not None else []
    after = stage.client().get([record.id for record in before])
    return bool(before) and [(record.id, record.text) for record in after] == [(r.id, r.text) for r in before]


def _best(result: RecallResult | None) -> str | None:
    return result.memories[0].record.id if result is not None and result.memories else None
