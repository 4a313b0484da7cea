"""A real memory infers, from the text of runs that contain no ids, which memories were used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from run_samples import SMALL, at, begin, end, event, failure, step, without_model
from store_checks import verified

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.learning.consolidation import MOST_RUNS
from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryFilter, RecallResult, Utility
from memory_agent.records.trajectories import Trajectory
from memory_agent.settings import EmbedderSettings
from memory_agent.storage.stored_runs import UNREAD

LATER = at(10_000)
SAID = MemoryFilter(sources=("user_input",))
QUESTION = "Why do logins fail on staging?"
MUTEX = "Logins fail when the token refresh races: guard it with a mutex in session_manager.rs."
REDIS = "Logins fail on staging when Redis evicts hot keys; set allkeys-lru and 512 MB."
CLOCK = "Staging logins fail in March because the clock of vm-eu-17 drifts by ninety seconds."
LUNCH = "Nobody logins during lunch at the harbour, said Priya about staging."
FACTS = (MUTEX, REDIS, CLOCK, LUNCH)
USED = "Guarded the token refresh with a mutex in session_manager.rs, all tests pass."
ELSEWHERE = "Painted the fence green and watered the tomatoes."
BOILERPLATE = "Task completed successfully. Everything is done. Please let me know if you have any further questions."


def fill(memory: Memory) -> None:
    """Store the facts, and a year of other memories, so that the facts' words are rare."""
    days = [f"Day {day}: looked at build {day}, wrote tests and read logs of service {day % 7}" for day in range(60)]
    texts = (*FACTS, *days)
    memory.ingest([event(f"said-{n}", "chat.user_msg", -600 + n, text=text) for n, text in enumerate(texts)], now=LATER)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with without_model(tmp_path / "alice") as memory:
        fill(memory)
        yield memory


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


def id_of(memory: Memory, text: str) -> str:
    (record,) = (record for _, record in memory._archive.store.scan() if record.text == text)
    return record.id


def asked(memory: Memory, run_id: str, minute: float, query: str = QUESTION) -> RecallResult:
    """Begin a run, and recall for this run; the answer contains all four facts."""
    memory.ingest([begin(run_id, minute, query)], now=LATER)
    answer = memory.recall(query, 4, SAID, by_run=run_id, now=at(minute + 1), deadline_ms=60_000)
    assert {found.record.text for found in answer.memories} == set(FACTS)
    return answer


def ran(memory: Memory, run_id: str, minute: float, report: str, summary: str = "Done") -> RecallResult:
    answer = asked(memory, run_id, minute)
    memory.ingest([step(run_id, 1, minute + 2, summary=report), end(run_id, minute + 3, summary=summary)], now=LATER)
    return answer


def known(memory: Memory, run_id: str = "r") -> Trajectory:
    run = memory.runs.get(run_id)
    assert run is not None
    return run


def used(memory: Memory, run_id: str = "r") -> list[tuple[str, str, float, str | None]]:
    return [(use.record_id, use.how, use.credit, use.recall_id) for use in known(memory, run_id).used]


def unread(memory: Memory) -> int:
    with memory._archive.store.snapshot() as snapshot:
        return sum(1 for _ in snapshot.run_keys(UNREAD))


def test_a_run_that_repeats_the_facts_of_a_memory_used_it_at_half_credit(memory: Memory) -> None:
    answer = ran(memory, "r", 0, USED)
    assert used(memory) == []
    assert memory.sona.consolidate(LATER)
    mutex = id_of(memory, MUTEX)
    assert used(memory) == [(mutex, "overlap", 0.5, answer.recall_id)]
    (record,) = memory.get([mutex])
    assert record is not None
    assert record.utility == Utility(used=1, reward_sum=0.8)


def test_runs_wait_while_the_columns_are_rebuilt(memory: Memory) -> None:
    """During a rebuild, words are counted in only some memories, so common words would seem rare."""
    ran(memory, "r", 0, USED)
    archive = memory._archive
    with archive._writing:  # the rebuild cannot start before the end of this block
        archive._start_rebuild(from_records=True)
        memory.sona.consolidate(LATER)
        assert (used(memory), unread(memory)) == ([], 1)
    archive.settled_view()
    assert memory.sona.consolidate(LATER)
    assert [name for name, *_ in used(memory)] == [id_of(memory, MUTEX)]


def test_a_summary_is_read_like_a_report(memory: Memory) -> None:
    ran(memory, "r", 0, "Looked around", summary="Set allkeys-lru and 512 MB on Redis, hot keys stay.")
    memory.sona.consolidate(LATER)
    assert [name for name, *_ in used(memory)] == [id_of(memory, REDIS)]


@pytest.mark.parametrize("report", [ELSEWHERE, BOILERPLATE, QUESTION, f"The question was: {QUESTION} I will look."])
def test_output_that_is_unrelated_or_repeats_the_request_or_common_words_used_nothing(
    memory: Memory, report: str
) -> None:
    ran(memory, "r", 0, report)
    assert memory.sona.consolidate(LATER)
    assert used(memory) == []
    assert unread(memory) == 0


def test_output_before_the_recall_does_not_come_from_its_answer(memory: Memory) -> None:
    memory.ingest([begin("r", 0, QUESTION), step("r", 1, 1, summary=USED)], now=LATER)
    memory.recall(QUESTION, 4, SAID, by_run="r", now=at(2), deadline_ms=60_000)
    memory.ingest([end("r", 3, summary="Done")], now=LATER)
    memory.sona.consolidate(LATER)
    assert used(memory) == []


def test_a_runs_own_reports_do_not_count_as_used(memory: Memory) -> None:
    memory.ingest([begin("r", 0, QUESTION), step("r", 1, 1, summary=f"Logins on staging: {USED}")], now=LATER)
    answer = memory.recall(QUESTION, 10, now=at(2), deadline_ms=60_000)
    assert any(found.record.run_id == "r" for found in answer.memories)
    memory.ingest([end("r", 3, summary=USED, recall_id=answer.recall_id)], now=LATER)
    memory.sona.consolidate(LATER)
    assert [name for name, *_ in used(memory)] == [id_of(memory, MUTEX)]


def test_nothing_is_inferred_for_a_recall_with_stated_uses(memory: Memory) -> None:
    redis, mutex = id_of(memory, REDIS), id_of(memory, MUTEX)
    first = ran(memory, "told", 0, USED)
    memory.feedback(first.recall_id, [redis], now=LATER)
    memory.sona.consolidate(LATER)
    assert used(memory, "told") == [(redis, "feedback", 1.0, first.recall_id)]
    second = ran(memory, "later", 60, USED)
    memory.sona.consolidate(LATER)
    assert used(memory, "later") == [(mutex, "overlap", 0.5, second.recall_id)]
    memory.feedback(second.recall_id, [redis], now=LATER)
    assert used(memory, "later") == [(redis, "feedback", 1.0, second.recall_id)]
    (record,) = memory.get([mutex])
    assert record is not None
    assert record.utility == Utility()


def test_uses_stated_for_one_recall_do_not_prevent_inference_for_another(memory: Memory) -> None:
    first = asked(memory, "r", 0)
    second = memory.recall("token refresh mutex", 1, SAID, by_run="r", now=at(2), deadline_ms=60_000)
    shown = {found.record.id for found in second.memories}
    redis, mutex = id_of(memory, REDIS), id_of(memory, MUTEX)
    assert mutex in shown
    assert redis not in shown
    memory.ingest([end("r", 3, summary=USED, memory_ids=[redis])], now=LATER)
    memory.sona.consolidate(LATER)
    assert sorted(used(memory)) == sorted(
        [(redis, "event", 1.0, first.recall_id), (mutex, "overlap", 0.5, second.recall_id)]
    )


def test_a_run_is_read_once_and_again_when_its_output_grows(memory: Memory) -> None:
    ran(memory, "r", 0, ELSEWHERE)
    memory.sona.consolidate(LATER)
    before = memory._archive.store.state.last_change, memory._archive.store.state.lessons_version
    assert not memory.sona.consolidate(LATER)
    assert (memory._archive.store.state.last_change, memory._archive.store.state.lessons_version) == before
    memory.ingest([step("r", 2, 4, summary=USED)], now=LATER)
    assert unread(memory) == 1
    memory.sona.consolidate(LATER)
    assert [name for name, *_ in used(memory)] == [id_of(memory, MUTEX)]
    memory.recall("redis hot keys", 4, SAID, by_run="r", now=at(5), deadline_ms=60_000)
    assert known(memory).recall_ids != ()
    assert unread(memory) == 1
    memory.sona.consolidate(LATER)
    assert unread(memory) == 0
    assert verified(memory._archive.store) > 0


def test_runs_read_stay_read_after_a_restart_and_closing_reads_the_rest(tmp_path: Path) -> None:
    with without_model(tmp_path / "alice") as memory:
        fill(memory)
        ran(memory, "r", 0, USED)
    with without_model(tmp_path / "alice") as memory:
        told = used(memory)
        assert [name for name, *_ in told] == [id_of(memory, MUTEX)]
        assert unread(memory) == 0
        memory.sona.consolidate(LATER)
        assert used(memory) == told


def test_a_forgotten_memory_is_no_longer_used_nor_does_a_forgotten_report_credit_any(memory: Memory) -> None:
    ran(memory, "r", 0, USED)
    ran(memory, "s", 60, USED)
    memory.sona.consolidate(LATER)
    mutex = id_of(memory, MUTEX)
    assert [name for name, *_ in used(memory)] == [mutex]
    report = known(memory, "s").steps[0].record_id
    assert report is not None
    memory.forget([report])
    memory.sona.consolidate(LATER)
    assert used(memory, "s") == []
    (record,) = memory.get([mutex])
    assert record is not None
    assert record.utility.used == 1
    memory.forget([mutex])
    assert used(memory) == []
    memory.sona.consolidate(LATER)
    assert used(memory) == []
    assert verified(memory._archive.store) > 0


def test_one_call_reads_a_bounded_number_of_runs_and_the_next_continues(memory: Memory) -> None:
    for number in range(MOST_RUNS + 3):
        memory.ingest([begin(f"r-{number}", 10 * number, QUESTION)], now=LATER)
        memory.recall(QUESTION, 4, SAID, by_run=f"r-{number}", now=at(10 * number + 1), deadline_ms=60_000)
        memory.ingest([end(f"r-{number}", 10 * number + 2, summary=USED)], now=LATER)
    assert unread(memory) == MOST_RUNS + 3
    memory.sona.consolidate(LATER)
    assert unread(memory) == 3
    memory.sona.consolidate(LATER)
    assert unread(memory) == 0
    assert used(memory, f"r-{MOST_RUNS + 2}") != []


def test_nothing_is_inferred_when_learning_is_off(tmp_path: Path) -> None:
    with without_model(tmp_path / "alice", mode="off") as memory:
        fill(memory)
        ran(memory, "r", 0, USED)
        assert not memory.sona.consolidate(LATER)
        assert used(memory) == []


def test_inferred_uses_are_exported_with_the_run(memory: Memory, tmp_path: Path) -> None:
    ran(memory, "r", 0, USED)
    memory.sona.consolidate(LATER)
    (mutex,) = memory.get([id_of(memory, MUTEX)])
    assert mutex is not None
    with without_model(tmp_path / "bob") as other:
        with other._archive.batch() as batch:
            batch.put(mutex, None)
        assert other.sona.load(memory.sona.export()) == 1
        other.sona.consolidate(LATER)
        assert [name for name, *_ in used(other)] == [mutex.id]


def test_uses_by_a_failed_run_count_in_utility_and_do_not_move_queries(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder, store_settings=SMALL) as memory:
        fill(memory)
        asked(memory, "r", 0)
        memory.ingest([step("r", 1, 2, summary=USED), failure("r", 3)], now=LATER)
        memory.sona.consolidate(LATER)
        (mutex,) = memory.get([id_of(memory, MUTEX)])
        assert mutex is not None
        assert mutex.utility == Utility(used=1, reward_sum=0.0)
        learner = memory._learner._learner
        assert learner is not None
        assert learner.credited == 1
        assert [one.weight for one in learner.exemplars.values()] == [0.0]
        ran(memory, "s", 60, USED)
        memory.sona.consolidate(LATER)
        learner = memory._learner._learner
        assert learner is not None
        assert sorted(one.weight for one in learner.exemplars.values())[-1] > 0
