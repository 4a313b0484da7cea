"""Test the stages: the gains from context and answers stay within the session and the filter, and match a manual
computation; learning is scaled.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_samples import NOW, message, texts
from talks import SHOWN, VOCABULARY, Talk, Turn, asked_of, open_talk, turns

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from memory_agent.recall import stages as formula
from memory_agent.recall.candidates import Candidates, scored
from memory_agent.recall.search import Search
from memory_agent.recall.stages import scale_of, with_neighbours
from memory_agent.records.memories import Mode
from memory_agent.settings import RecallSettings

QUESTION = "Which paint did the landlord choose for the hallway?"
ANSWER = "The warm grey one, two coats of it"
ASKED = "What did the landlord choose for the hallway?"
OTHERS = ("Buy bread and milk", "The train leaves at nine", "Water the ferns on the balcony", "Renew the passport")

SCORES = np.sort(np.random.default_rng(1).gamma(2.0, 0.2, 80))[::-1]

said_turns = st.lists(turns.map(lambda turn: turn._replace(has_vector=True)), min_size=1, max_size=45)
queries = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=3, unique=True)
shares = st.sampled_from([0.0, 0.4, 1.0])


def whole(turn: Turn) -> float:
    return formula._WHOLE_TOKENS / max(turn.tokens, formula._WHOLE_TOKENS)


def exchanged(talk: Talk, found: Candidates) -> list[tuple[float, int]]:
    """For each candidate, return its gain as an answer minus its loss as a question, and the slot of its lender."""
    slots = found.slots.tolist()
    fused = dict(zip(slots, found.fused.tolist(), strict=True))
    ranked = sorted(fused.values(), reverse=True)
    floor = ranked[min(formula._FLOOR, len(ranked) - 1)]
    gains = []
    for slot in slots:
        around = talk.around(slot, 1, set(range(len(talk.turns))))
        place = around.index(slot)
        before, after = around[:place], around[place + 1 :]
        gain, lender = 0.0, -1
        if before and before[0] in fused and talk.turns[before[0]].is_asking:
            gain = max(fused[before[0]] - floor, 0.0) * whole(talk.turns[slot])
            lender = before[0] if gain > 0 else -1
        if talk.turns[slot].is_asking and after and after[0] in fused:
            gain -= formula._GIVES_WAY * whole(talk.turns[after[0]])
        gains.append((gain, lender))
    return gains


def ranked(found: Search) -> Candidates:
    return with_neighbours(scored(found, found.passing(np.arange(found.view.count))), found)


@given(said_turns, queries, st.booleans(), shares, shares)
@settings(deadline=None, max_examples=60)
def test_a_question_lends_to_the_next_memory_and_ranks_lower(
    said: list[Turn], words: list[str], is_filtered: bool, contiguity: float, context: float
) -> None:
    chosen = SHOWN if is_filtered else None
    weights = RecallSettings(contiguity=contiguity, context_words=context)
    with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", said) as talk:
        search = asked_of(talk.archive, words, asks=True, filter=chosen, settings=weights)
        if search.cosines is None:
            return
        found = ranked(search)
        expected = exchanged(talk, found)
    assert np.allclose(found.lent, [contiguity * gain for gain, _ in expected], rtol=0, atol=1e-9)
    assert found.lenders.tolist() == [lender if contiguity else -1 for _, lender in expected]
    assert np.array_equal(found.context, context * found.near)
    assert np.allclose(found.total, found.fused + found.context + found.lent)


@given(said_turns, queries)
@settings(deadline=None, max_examples=20)
def test_a_query_that_is_no_question_lends_nothing(said: list[Turn], words: list[str]) -> None:
    with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", said) as talk:
        found = ranked(asked_of(talk.archive, words))
    assert not found.lent.any()
    assert (found.lenders == -1).all()
    assert np.array_equal(found.context, RecallSettings().context_words * found.near)


@given(said_turns, queries, st.sampled_from(["vector", "lexical"]))
@settings(deadline=None, max_examples=10)
def test_a_single_side_gains_nothing_from_neighbours(said: list[Turn], words: list[str], mode: Mode) -> None:
    with TemporaryDirectory() as folder, open_talk(Path(folder) / "a", said) as talk:
        found = ranked(asked_of(talk.archive, words, asks=True, mode=mode))
    assert not found.context.any()
    assert not found.lent.any()
    assert np.array_equal(found.total, found.fused)


@pytest.mark.parametrize(("length", "share"), [(0, 1), (formula._WHOLE_TOKENS, 1), (4 * formula._WHOLE_TOKENS, 0.25)])
def test_a_long_answer_gains_less(tmp_path: Path, length: int, share: float) -> None:
    said = [Turn(0, ("walnut",), is_asking=True), Turn(0, ("ferry",), length), *(Turn(None, ("marsh",)) for _ in "123")]
    with open_talk(tmp_path / "a", said) as talk:
        found = ranked(asked_of(talk.archive, ["walnut"], asks=True))
    assert found.lent[1] == pytest.approx(share * (found.fused[0] - found.fused.min()))
    assert found.lent[0] == pytest.approx(-share * formula._GIVES_WAY)


def talk(session: str | None, first: int, *texts: str, **fields: object) -> list[dict[str, object]]:
    return [message(first + place, text, session_id=session, **fields) for place, text in enumerate(texts)]


def conversation() -> list[dict[str, object]]:
    return [
        *talk("home", 100, *OTHERS, QUESTION, ANSWER, *OTHERS),
        *talk("office", 200, ANSWER + " for the office", *OTHERS),
    ]


def open_memory(folder: Path, embedder: Embedder, **weights: float) -> Memory:
    memory = Memory.open(folder / "u", embedder=embedder, recall_settings=RecallSettings(**weights))  # type: ignore[arg-type]
    memory.ingest(conversation(), now=NOW)
    return memory


def test_the_answer_that_follows_the_question_comes_first_and_names_its_lender(
    tmp_path: Path, embedder: Embedder
) -> None:
    with open_memory(tmp_path, embedder) as memory:
        result = memory.recall(ASKED, top_k=2)
    found = {one.record.text: one for one in result.memories}
    assert set(found) == {QUESTION, ANSWER}
    assert found[ANSWER].explanation["contiguity"] > 0
    assert found[ANSWER].explanation["lent_by"] == [found[QUESTION].record.id]
    assert found[QUESTION].explanation["contiguity"] < 0
    assert found[QUESTION].explanation["lent_by"] == []


def test_without_neighbours_it_is_not_found(tmp_path: Path, embedder: Embedder) -> None:
    with open_memory(tmp_path, embedder, contiguity=0.0, context_words=0.0) as memory:
        result = memory.recall(ASKED, top_k=2, min_relevance=0)
    assert texts(result)[0] == QUESTION
    assert ANSWER not in texts(result)
    assert {one.explanation["contiguity"] for one in result.memories} == {0.0}
    assert result.memories[0].explanation["lent_by"] == []


@pytest.mark.parametrize("mode", ["vector", "lexical"])
def test_the_ranking_by_a_single_side_ignores_neighbours(tmp_path: Path, embedder: Embedder, mode: Mode) -> None:
    with open_memory(tmp_path, embedder) as memory:
        result = memory.recall("hallway paint?", top_k=3, mode=mode)
    assert result.memories
    assert all(found.explanation["contiguity"] == found.explanation["context"] == 0.0 for found in result.memories)


def test_a_neighbour_that_the_filter_leaves_out_stays_out(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "u", embedder=embedder) as memory:
        memory.ingest(talk("home", 1, QUESTION, agent_id="asker") + talk("home", 2, ANSWER, agent_id="other"), now=NOW)
        asker = memory.recall("What did the landlord choose?", filter={"agent_id": "asker"}, min_relevance=0.0)
        other = memory.recall("What did the landlord choose?", filter={"agent_id": "other"}, min_relevance=0.0)
    assert texts(asker) == [QUESTION]
    assert texts(other) == [ANSWER]
    assert [one.explanation["contiguity"] for one in (*asker.memories, *other.memories)] == [0.0, 0.0]


def test_memories_without_a_session_have_no_neighbours(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "u", embedder=embedder) as memory:
        memory.ingest(talk(None, 1, QUESTION, ANSWER, *OTHERS), now=NOW)
        result = memory.recall("What did the landlord choose?", top_k=6)
    assert all(found.explanation["contiguity"] == 0.0 for found in result.memories)
    assert all(found.explanation["near"] == found.explanation["words"] for found in result.memories)


def test_a_question_spread_over_two_turns_is_answered_by_them_and_not_by_half_a_match(memory: Memory) -> None:
    said = ["The zeppelin project slipped again", "Its budget was cut by the council in spring"]
    noise = ["The council met", "A budget for the kitchen", "The zeppelin museum opens", "Lunch is at noon"]
    memory.ingest(talk("work", 0, *said), now=NOW)
    memory.ingest([message(50 + n, text, session_id=f"other-{n}") for n, text in enumerate(noise)], now=NOW)
    result = memory.recall("who cut the budget of the zeppelin project", top_k=2)
    assert sorted(texts(result)) == sorted(said)
    best = result.memories[0].explanation
    assert best["context"] == pytest.approx(RecallSettings().context_words * best["near"])
    assert best["near"] > best["words"]


def test_the_scale_of_learning_is_two_and_a_half_times_the_spread_of_the_best_fifty_without_the_best_tenth() -> None:
    assert scale_of(SCORES) == pytest.approx(2.5 * (SCORES[5] - SCORES[49]))
    assert scale_of(SCORES[:20]) == pytest.approx(2.5 * (SCORES[2] - SCORES[19]))
    assert scale_of(SCORES[:3]) == pytest.approx(2.5 * (SCORES[0] - SCORES[2]))


def test_a_leader_that_stands_out_does_not_widen_the_scale() -> None:
    assert scale_of(np.append(SCORES[0] + 2.0, SCORES[1:])) == pytest.approx(scale_of(SCORES))


def test_the_scale_follows_the_unit_of_the_scores_and_ignores_their_level() -> None:
    assert scale_of(1.5 * SCORES) == pytest.approx(1.5 * scale_of(SCORES))
    assert scale_of(SCORES + 0.3) == pytest.approx(scale_of(SCORES))


def test_among_equal_scores_the_scale_is_a_tenth_of_the_best() -> None:
    assert scale_of(np.full(12, 1.2)) == pytest.approx(0.12)
    assert scale_of(np.array([0.8])) == pytest.approx(0.08)


def test_without_answers_learning_adds_nothing() -> None:
    assert scale_of(np.array([])) == 0.0
