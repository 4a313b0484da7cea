"""A real memory's learner file when it is lost, outdated, reset, exported or imported, or when a session is forgotten.
Also tests which runs the gate may count.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from recurring_requests import copied, open_company

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError
from memory_agent.settings import LearningSettings

ON, AUTO, OFF = (LearningSettings(mode=mode) for mode in ("on", "auto", "off"))
TAUGHT = range(40)
ASKED = range(40, 55)


def test_a_lost_learner_file_is_relearned_bit_for_bit(tmp_path: Path, taught: Path, embedder: Embedder) -> None:
    states = {}
    for name in ("kept", "lost", "damaged", "torn"):
        folder = copied(taught, tmp_path / name)
        file = folder / "sona.state"
        data = file.read_bytes()
        if name == "lost":
            file.unlink()
        elif name == "damaged":
            file.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
        elif name == "torn":
            file.write_bytes(data[: len(data) // 2])
        company = open_company(folder, embedder, ON)
        thing, result = company.ask(47)
        assert company.places(result)[0] == company.notes[thing].id
        company.memory.close()
        states[name] = file.read_bytes()
        assert (folder / "sona.damaged").exists() is (name in ("damaged", "torn"))
    assert len(set(states.values())) == 1


def test_a_forgotten_memory_is_no_longer_reached(tmp_path: Path, taught: Path, embedder: Embedder) -> None:
    company = open_company(copied(taught, tmp_path / "on"), embedder, ON)
    thing, _ = company.request(45)
    before = company.memory.sona.status()
    company.memory.forget([company.notes[thing].id])
    status = company.memory.sona.status()
    assert status.credited == before.credited - 8
    _, result = company.ask(45)
    assert company.notes[thing].id not in company.places(result)
    assert all(found.explanation["association"] == 0.0 for found in result.memories if thing in found.record.text)
    company.memory.close()


def test_after_forgetting_a_session_the_learner_is_the_one_that_never_saw_it(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    answers = []
    for name in ("innocent", "forgetful"):
        company = open_company(copied(untaught, tmp_path / name), embedder, AUTO)
        for number in range(30):
            if number % 3 != 1:
                company.run(number, "kept")
            elif name == "forgetful":
                company.run(number, "gone")
        if name == "forgetful":
            assert company.memory.sona.status().credited == 30
            company.memory.forget_session("gone")  # relearns everything
        else:
            company.memory.sona.consolidate()
        assert company.memory.sona.status().credited == 20
        learner = company.memory._learner._learner
        assert learner is not None
        adaptation = learner.adapt(embedder.embed_query("Why does the login page hang"))
        assert adaptation is not None
        answers.append(
            (
                adaptation.direction.tobytes(),
                adaptation.reached.memories.tolist(),
                adaptation.reached.amounts.tobytes(),
                learner.gate.evidence().credited,  # earlier comparisons stay
                learner.baselines.to_bytes(),
                learner.prior.to_bytes(),
                learner.instant.to_bytes(),
                [one.request.tobytes() + one.answer.tobytes() for one in learner.exemplars.values()],
            )
        )
        company.memory.close()
    assert answers[0] == answers[1]


def test_a_reset_forgets_what_was_learned_and_learns_from_then_on(
    tmp_path: Path, taught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(taught, tmp_path / "on"), embedder, ON)
    assert company.memory.sona.reset() == len(TAUGHT)
    assert (company.memory.sona.status().credited, company.memory.sona.status().exemplars) == (0, 0)
    assert company.leads(range(40, 50)) <= 4
    company.learn(range(50, 55))
    company.memory.close()
    company = open_company(tmp_path / "on", embedder, ON)
    assert 0 < company.memory.sona.status().credited <= 5
    company.memory.close()


def test_an_export_teaches_another_store_with_the_same_memories(
    tmp_path: Path, taught: Path, embedder: Embedder
) -> None:
    source = open_company(copied(taught, tmp_path / "source"), embedder, ON)
    parcel = source.memory.sona.export()
    source.memory.close()
    target = open_company(copied(taught, tmp_path / "target"), embedder, ON)
    assert target.memory.sona.load(parcel) == 0
    target.memory.close()
    with pytest.raises(InvalidInputError, match="data"):
        open_and_load(tmp_path / "other", embedder, parcel[:-1])
    assert open_and_load(tmp_path / "bare", embedder, parcel) == len(TAUGHT)


def open_and_load(folder: Path, embedder: Embedder, parcel: bytes) -> int:
    company = open_company(folder, embedder, ON)
    try:
        return company.memory.sona.load(parcel)
    finally:
        company.memory.close()


def test_a_run_with_many_recalls_and_one_citation_counts_once_in_the_gate(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "auto"), embedder, AUTO)
    company.learn(range(9))
    before = company.memory.sona.status().gate
    assert before.state == "trial"
    _, words = company.request(51)
    note = company.notes[company.request(51)[0]]
    company.memory.runs.begin("Ask again and again", "asker")
    for _ in range(15):
        company.memory.recall(words.format(company.request(51)[0]), 3, by_run="asker", deadline_ms=60_000)
    company.memory.runs.end("asker", quality=1.0, memory_ids=[note.id])
    company.memory.sona.consolidate()
    after = company.memory.sona.status().gate
    assert after.state == "trial"
    assert after.won + after.lost + after.tied <= before.won + before.lost + before.tied + 1
    company.memory.close()


def test_a_duplicate_of_a_shown_memory_is_credited_as_that_memory(tmp_path: Path, embedder: Embedder) -> None:
    company = open_company(tmp_path / "twins", embedder, AUTO)
    memory = company.memory
    twins = [memory.remember("The coffee machine needs descaling every month") for _ in range(2)]
    for number in range(4):
        memory.remember(f"Somebody ordered {number + 2} bags of coffee for the kitchen on floor {number}")
    result = memory.recall("the coffee machine is slow", 5)
    shown = next(found for found in result.memories if found.count == 2)
    other = next(twin.id for twin in twins if twin.id != shown.record.id)
    assert memory.feedback(result.recall_id, [other]).credited == (other,)
    run = memory.runs.get(result.recall_id)
    assert run is not None
    assert [(use.record_id, use.recall_id) for use in run.used] == [(shown.record.id, result.recall_id)]
    named = [found.record.id for found in result.memories if found is not shown] + [other]
    assert memory.feedback(result.recall_id, named).credited == ()
    company.memory.close()


def test_forgetting_an_unused_memory_leaves_the_credit_of_used_ones(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    company = open_company(copied(untaught, tmp_path / "auto"), embedder, AUTO)
    _, result = company.ask(3, top_k=4)
    *used, unused = [found.record.id for found in result.memories]
    company.memory.feedback(result.recall_id, used, 1.0)
    company.memory.forget([unused])
    company.memory.feedback(result.recall_id, comment="It held")
    run = company.memory.runs.get(result.recall_id)
    assert run is not None
    assert {use.record_id for use in run.used} == set(used)
    company.memory.close()


@pytest.mark.parametrize("settings", [AUTO, OFF])
def test_forgetting_leaves_nothing_learned_on_the_disk(
    tmp_path: Path, taught: Path, embedder: Embedder, settings: LearningSettings
) -> None:
    folder = copied(taught, tmp_path / "store")
    (folder / "sona.damaged").write_bytes(b"of before")
    company = open_company(folder, embedder, settings)
    company.memory.forget([record.id for record in (*company.notes.values(), *company.tickets.values())])
    assert list(folder.glob("sona.*")) == []
    company.memory.close()
    reset = open_company(copied(taught, tmp_path / "reset"), embedder, settings)
    reset.memory.sona.reset()
    reset.memory.close()
    assert list((tmp_path / "reset").glob("sona.*")) == []


def test_a_learner_file_older_than_a_restore_is_not_used(tmp_path: Path, untaught: Path, embedder: Embedder) -> None:
    folder = copied(untaught, tmp_path / "store")
    backup = copied(folder, tmp_path / "backup")
    company = open_company(folder, embedder, ON)
    company.learn(range(2))
    company.memory.close()
    other = open_company(backup, embedder, ON)
    other.learn(range(2, 4))
    other.memory.close()
    (folder / "sona.state").replace(backup / "sona.state")
    restored = open_company(backup, embedder, ON)
    learner = restored.memory._learner._learner
    assert learner is not None
    used = {memory for fact in learner.facts.values() for memory in fact.used}
    with restored.memory._archive.store.snapshot() as snapshot:
        assert used == {use.row for run in snapshot.trajectories() for use in run.used}
    restored.memory.close()


def test_an_import_brings_back_no_session_that_was_forgotten_and_counts_what_was_used(
    tmp_path: Path, untaught: Path, embedder: Embedder
) -> None:
    source = open_company(copied(untaught, tmp_path / "source"), embedder, AUTO)
    for number in range(3):
        source.run(number, "private")
    parcel = source.memory.sona.export()
    source.memory.forget_session("private")
    assert source.memory.sona.load(parcel) == 0
    assert source.memory.runs.get("run-0") is None
    source.memory.close()
    target = open_company(copied(untaught, tmp_path / "target"), embedder, AUTO)
    assert target.memory.sona.load(parcel) == 3
    (record,) = target.memory.get([target.notes[target.request(0)[0]].id])
    assert record is not None
    assert record.utility.used == 1
    target.memory.close()
