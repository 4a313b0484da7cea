"""Runs, feedback and learning work alike in process and through the daemon; a repeated request takes effect once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served_host import absent_embedder, client_of_host

from memory_agent import AsyncMemoryClient, Memory, MemoryClient
from memory_agent.client.async_methods import AsyncRunsMethods, AsyncSonaMethods
from memory_agent.client.methods import RunsMethods, SonaMethods
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import InvalidInputError, RunBegunError, RunEndedError, RunUnknownError
from memory_agent.memory import Runs, Sona
from memory_agent.records.trajectories import Trajectory
from memory_agent.verbs.table import VERBS

RACE = "the auth race needed a mutex"
LUNCH = "lunch is at noon"
Either = Memory | MemoryClient


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEmbedder]:
    """A client whose embedder is missing, so that recalls search only by words."""
    with absent_embedder(tmp_path_factory.mktemp("embedder")) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory, embedder: RemoteEmbedder) -> Iterator[Memory]:
    with Memory.open(tmp_path_factory.mktemp("embedded") / "alice", embedder=embedder) as memory:
        yield memory


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, embedder: RemoteEmbedder) -> Iterator[MemoryClient]:
    with client_of_host(tmp_path_factory.mktemp("host"), embedder) as client:
        yield client


@pytest.fixture(params=["embedded", "client"])
def memory(request: pytest.FixtureRequest) -> Either:
    either: Either = request.getfixturevalue(request.param)
    return either


def parameters(function: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """A method's parameters without the time, which only an embedded memory accepts."""
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != "now"]


@pytest.mark.parametrize(
    ("embedded", "of_client"),
    [(Runs, RunsMethods), (Runs, AsyncRunsMethods), (Sona, SonaMethods), (Sona, AsyncSonaMethods)],
)
def test_clients_have_the_signatures_of_an_embedded_memory(embedded: type, of_client: type) -> None:
    offered = [name for name, _ in inspect.getmembers(of_client, inspect.isfunction) if not name.startswith("_")]
    assert offered
    for name in offered:
        assert parameters(getattr(of_client, name)) == parameters(getattr(embedded, name)), name


@pytest.mark.parametrize("client", [MemoryClient, AsyncMemoryClient])
@pytest.mark.parametrize("name", ["feedback", "forget_session"])
def test_feedback_has_one_signature(client: type, name: str) -> None:
    assert parameters(getattr(client, name)) == parameters(getattr(Memory, name))


def test_only_recognisable_writes_are_repeated_after_a_host_died() -> None:
    of_memories = {verb for verb in VERBS if verb.answered_by == "memory"}
    assert {verb.name for verb in of_memories if not verb.is_repeatable} == {"remember", "compact", "rebuild"}


def test_a_run_from_its_recall_to_its_feedback(memory: Either) -> None:
    race, _ = memory.remember(RACE), memory.remember(LUNCH)
    found = memory.recall("auth race", mode="lexical")
    begun = memory.runs.begin("Fix the auth race", session_id="s-1", recall_ids=[found.recall_id])
    assert (begun.state, begun.objective, begun.session_id, begun.quality) == ("open", "Fix the auth race", "s-1", None)
    assert begun.recall_ids == (found.recall_id,)
    stepped = memory.runs.step(begun.id, "Put a mutex around the refresh", memory_ids=[race.id])
    assert len(stepped.steps) == len(begun.steps) + 1
    ended = memory.runs.end(begun.id, summary="Two tabs refresh and stay signed in")
    assert (ended.state, ended.outcome, ended.quality) == ("ended", "completed", 0.8)
    assert [(used.record_id, used.how, used.credit) for used in ended.used] == [(race.id, "event", 1.0)]
    report = memory.feedback(found.recall_id, used=[race.id], quality=1.0, comment="Held for a week")
    assert (report.trajectory_id, report.credited, report.quality) == (begun.id, (race.id,), 1.0)
    kept = memory.runs.get(begun.id)
    assert kept is not None
    assert (kept.quality, kept.revisions[-1].reason) == (1.0, "rated")
    assert memory.runs.list("ended", 1) == [kept]
    assert begun.id not in [run.id for run in memory.runs.list("open")]


def test_a_repeated_event_id_is_applied_once(memory: Either) -> None:
    memory.remember(RACE)
    found = memory.recall("auth race", mode="lexical")
    shown = found.memories[0].record.id

    def twice(ask: Callable[[], Trajectory]) -> Trajectory:
        first, second = ask(), ask()
        assert first == second
        return second

    run = twice(lambda: memory.runs.begin("Fix it again", recall_ids=[found.recall_id], event_id="again-begin"))
    steps = len(run.steps)
    run = twice(lambda: memory.runs.step(run.id, "Measured how often it happens", event_id="again-step"))
    assert len(run.steps) == steps + 1
    run = twice(lambda: memory.runs.end(run.id, "failed", "It happened again", event_id="again-end"))
    assert (run.quality, len(run.revisions)) == (0.0, 1)
    reports = [memory.feedback(found.recall_id, [shown], 0.5, event_id="again-feedback") for _ in range(2)]
    assert reports[0] == reports[1]
    judged = memory.runs.get(run.id)
    assert judged is not None
    assert [revision.quality for revision in judged.revisions] == [0.0, 0.5]


def test_a_run_ends_once_and_feedback_on_it_revises_its_quality(memory: Either) -> None:
    fix = memory.remember("Quarterly totals belong into a table of their own")
    run = memory.runs.begin("Add up the quarter", run_id="once")
    ended = memory.runs.end(run.id, summary="The totals  agree", quality=0.7, memory_ids=[fix.id])
    same = memory.runs.end(run.id, "completed", "The totals agree", 0.7, [fix.id])
    assert same == memory.runs.end(run.id) == ended
    for other in (
        lambda: memory.runs.end(run.id, "failed"),
        lambda: memory.runs.end(run.id, quality=0.1),
        lambda: memory.runs.end(run.id, summary="The totals do not agree"),
        lambda: memory.runs.end(run.id, memory_ids=[memory.remember("Another table").id]),
        lambda: memory.runs.step(run.id, "Counted once more"),
    ):
        with pytest.raises(RunEndedError, match="revise its quality with feedback"):
            other()
    assert memory.runs.get(run.id) == ended
    report = memory.feedback(run.id, [], 0.2, "Two of the totals were wrong after all")
    assert (report.trajectory_id, report.quality) == (run.id, 0.2)
    judged = memory.runs.get(run.id)
    assert judged is not None
    assert (judged.outcome, judged.quality, len(judged.steps)) == ("completed", 0.2, len(ended.steps))
    kept = memory.recall("which totals were wrong after all", mode="lexical").memories[0].record
    assert (kept.text, kept.run_id) == ("Feedback: Two of the totals were wrong after all", run.id)


def test_feedback_on_a_run_credits_what_it_names(memory: Either) -> None:
    chosen, other = memory.remember("The scanner needs two passes"), memory.remember("The scanner is in room four")
    memory.runs.begin("Scan the contracts", run_id="scanned")
    memory.runs.end("scanned")
    report = memory.feedback("scanned", [chosen.id, "no-such-memory"])
    assert report.credited == (chosen.id,)
    assert list(report.not_credited) == ["no-such-memory"]
    assert memory.get([chosen.id, other.id])[0].utility.used == 1


def test_a_run_begins_once(memory: Either) -> None:
    begun = memory.runs.begin("Sort the archive", run_id="begun", session_id="s-begun")
    assert memory.runs.begin(" Sort  the archive", run_id="begun") == begun
    found = memory.recall("sort archive", mode="lexical")
    more = memory.runs.begin("Sort the archive", run_id="begun", session_id="s-begun", recall_ids=[found.recall_id])
    assert (more.recall_ids, more.began_at) == ((found.recall_id,), begun.began_at)
    for objective, session in (("Burn the archive", None), ("Sort the archive", "s-other")):
        with pytest.raises(RunBegunError, match="run begun began at"):
            memory.runs.begin(objective, run_id="begun", session_id=session)
    kept = memory.runs.get("begun")
    assert kept is not None
    assert (kept.objective, kept.session_id) == ("Sort the archive", "s-begun")


def test_an_unknown_run_takes_neither_steps_nor_an_end(memory: Either) -> None:
    for ask in (lambda: memory.runs.step("mistyped", "Went on"), lambda: memory.runs.end("mistyped", "failed")):
        with pytest.raises(RunUnknownError, match="no such run: mistyped"):
            ask()
    assert memory.runs.get("mistyped") is None


def test_an_unknown_run_is_returned_as_none(memory: Either) -> None:
    assert memory.runs.get("nobody's run") is None


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda memory: memory.runs.begin(""), "objective"),
        (lambda memory: memory.runs.begin("x", recall_ids="one"), "recall_ids"),
        (lambda memory: memory.runs.begin("x", run_id=""), "run_id"),
        (lambda memory: memory.runs.step("r", ""), "text"),
        (lambda memory: memory.runs.step("r", "x", memory_ids="one"), "memory_ids"),
        (lambda memory: memory.runs.end("r", "won"), "outcome"),
        (lambda memory: memory.runs.end("r", quality=1.5), "quality"),
        (lambda memory: memory.runs.end("r", quality=True), "quality"),
        (lambda memory: memory.runs.list("closed"), "state"),
        (lambda memory: memory.runs.list(limit=0), "limit"),
        (lambda memory: memory.feedback("r", used="one"), "used"),
        (lambda memory: memory.feedback("r", quality=-1), "quality"),
        (lambda memory: memory.feedback("no such recall", quality=1.0), "recall_id"),
        (lambda memory: memory.sona.load(b"no state"), "data"),
    ],
)
def test_an_unusable_argument_is_named(memory: Either, ask: Callable[[Any], object], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ask(memory)
    assert caught.value.field == field


def test_the_learner_is_exported_loaded_and_reset(memory: Either) -> None:
    status = memory.sona.status()
    assert (status.user_id, status.gate.state) == ("alice", "shadow")
    assert memory.sona.load(memory.sona.export()) == 0  # all lessons are known already
    assert memory.sona.reset() == status.trajectories
    assert memory.sona.status().credited == 0


def test_the_async_client_keeps_runs_too(client: MemoryClient) -> None:
    async def scenario() -> list[Trajectory]:
        async with AsyncMemoryClient("alice", endpoint=client._address.endpoint, token="t") as asker:
            await asker.remember("the build needs two cores")
            found = await asker.recall("build cores", mode="lexical")
            run = await asker.runs.begin("Make the build faster", run_id="async-1", recall_ids=[found.recall_id])
            await asker.runs.step(run.id, "Gave it another core")
            await asker.runs.end(run.id, "completed", "It takes half as long")
            await asker.feedback(found.recall_id, [found.memories[0].record.id], 1.0)
            assert (await asker.sona.status()).user_id == "alice"
            ended = await asker.runs.get("async-1")
            assert ended is not None
            assert (ended.quality, [used.how for used in ended.used]) == (1.0, ["feedback"])
            return await asker.runs.list(limit=1)

    assert [run.id for run in asyncio.run(scenario())] == ["async-1"]


def test_a_session_is_forgotten_with_its_runs(memory: Either) -> None:
    memory.remember("the secret plan is in the drawer", session_id="s-secret")
    run = memory.runs.begin("Carry the secret plan out", session_id="s-secret")
    assert memory.forget_session("s-secret") >= 1
    assert memory.runs.get(run.id) is None
    assert memory.recall("secret plan drawer", mode="lexical").memories == ()
