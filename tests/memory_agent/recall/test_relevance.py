"""A recall omits memories that are irrelevant to the query, in every mode, with and without a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_vectors import MadeVectors
from memory_samples import NOW, START, message, open_without_model, texts

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError, SettingsError
from memory_agent.memory import Memory
from memory_agent.recall.candidates import Candidates, shortlist
from memory_agent.recall.search import Search
from memory_agent.records.memories import MODES, Mode
from memory_agent.settings import LearningSettings, RecallSettings, Settings, load_settings

TALK = (
    "The new kiln finally arrived, it fires stoneware at 1,280 degrees",
    "Ann glazed twelve bowls in celadon for the market in Oslo",
    "The glaze cracked because the kiln cooled too quickly",
    "We agreed to fire the second batch slowly, overnight",
    "The market stall costs 400 crowns a day",
    "Ann's brother Per plays the cello in Bergen",
)
RELATED = {
    "why did the glaze crack?": TALK[2],
    "what does the stall at the market cost": TALK[4],
    "cello in Bergen": TALK[5],
}
ALIEN = (
    "how do I sort a list of dictionaries in Python",
    "who won the world cup in 1998",
    "rotate the API keys of the payment provider",
    "hi",
)


@pytest.fixture
def pottery(memory: Memory) -> Memory:
    memory.ingest([message(number, text, session_id="pottery") for number, text in enumerate(TALK)], now=NOW)
    return memory


@pytest.fixture
def without_model(tmp_path: Path) -> Iterator[Memory]:
    with open_without_model(tmp_path / "wordy") as memory:
        memory.ingest([message(number, text, session_id="pottery") for number, text in enumerate(TALK)], now=NOW)
        yield memory


@pytest.mark.parametrize("mode", MODES)
def test_a_question_about_something_unknown_gets_no_answer(pottery: Memory, mode: Mode) -> None:
    for query in ALIEN:
        result = pottery.recall(query, mode=mode, now=NOW)
        assert (result.memories, result.degraded) == ((), ()), query
        if mode != "lexical":
            assert len(pottery.recall(query, mode=mode, now=NOW, min_relevance=0).memories) == 5


@pytest.mark.parametrize("mode", MODES)
def test_a_related_question_keeps_its_answers(pottery: Memory, mode: Mode) -> None:
    for query, answer in RELATED.items():
        found = pottery.recall(query, mode=mode, now=NOW).memories
        assert found[0].record.text == answer
        assert found[0].relevance is not None
        assert found[0].relevance >= RecallSettings().min_relevance


def test_without_a_model_relevance_follows_from_words(without_model: Memory) -> None:
    for query in ALIEN:
        assert without_model.recall(query, now=NOW).memories == (), query
    for query, answer in RELATED.items():
        result = without_model.recall(query, now=NOW)
        assert (texts(result)[0], result.degraded) == (answer, ("no_model",))


def test_relevance_is_the_same_in_hybrid_and_by_vector(pottery: Memory) -> None:
    for query in (*RELATED, *ALIEN):
        hybrid, vector = (
            {
                found.record.id: found.relevance
                for found in pottery.recall(query, 20, mode=mode, min_relevance=0).memories
            }
            for mode in ("hybrid", "vector")
        )
        assert hybrid == pytest.approx(vector)
        assert len(hybrid) == len(TALK)


MANY_THINGS = (
    "Lunch is at noon",
    "Users stay signed in at checkout: two tabs raced for one token, a mutex per session fixed it",
    "Staging needs the VPN",
    "Done.",
    "\N{PARTY POPPER}",
    "The office coffee machine is broken again",
)


@pytest.mark.parametrize("session_id", [None, "talk"])
def test_irrelevant_memories_are_left_out_however_few_there_are(memory: Memory, session_id: str | None) -> None:
    """Neither the words of neighbouring memories nor a good answer in the store makes memories about other topics
    relevant.
    """
    for text in MANY_THINGS:
        memory.remember(text, tags=["deploy"] if "VPN" in text else (), session_id=session_id)
    for query, answer in (
        ("why does the deploy hang?", MANY_THINGS[2]),
        ("do I need the VPN for staging?", MANY_THINGS[2]),
        ("when do we have lunch?", MANY_THINGS[0]),
        ("what is wrong with the coffee machine?", MANY_THINGS[5]),
    ):
        assert texts(memory.recall(query, 10)) == [answer], query
    assert texts(memory.recall("what is the capital of France?", 10)) == []


@pytest.mark.parametrize("text", ["\N{PARTY POPPER}", "...", "?!"])
def test_a_text_without_words_is_irrelevant(memory: Memory, text: str) -> None:
    memory.remember(text)
    for query in (*ALIEN, *RELATED, "kiln", "thanks"):
        assert memory.recall(query).memories == (), query


def test_an_answer_in_other_words_beside_its_question_stays(memory: Memory) -> None:
    """The answer shares no words with the query, but its vector is similar enough for its neighbours to count."""
    talk = ("Where does your sister Ann live these days?", "She moved to Bergen, near the harbour", "And Per is fine")
    memory.ingest([message(number, text, session_id="talk") for number, text in enumerate(talk)], now=NOW)
    assert talk[1] in texts(memory.recall("where does Ann live?", 10, now=NOW))


def test_words_of_memories_outside_the_filter_do_not_count(pottery: Memory) -> None:
    """Neighbours outside the filter do not add to the score."""
    query = "why did the glaze crack?"
    chosen = {"since": START.replace(minute=3)}
    inside = [found.relevance for found in pottery.recall(query, filter=chosen, min_relevance=0).memories]
    assert len(inside) == 3
    assert max(filter(None, inside)) < 0.6
    assert pottery.recall(query, filter=chosen).memories == ()


def test_a_former_request_in_the_same_words_vouches_for_nothing(pottery: Memory) -> None:
    query = "how do I sort a list of dictionaries in Python"
    pottery.ingest([message(50, query, session_id="other")], now=NOW)
    assert texts(pottery.recall(query, now=NOW)) in ([], [query])


def test_an_answer_without_relevant_memories_causes_no_second_search(
    pottery: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def counting(search: Search, limit: int, sure: int) -> Candidates:
        limits.append(limit)
        return shortlist(search, limit, sure)

    monkeypatch.setattr("memory_agent.recall.pipeline.shortlist", counting)
    pottery.ingest([message(100 + n, f"The cello of number {n} is out of tune") for n in range(200)], now=NOW)
    assert pottery.recall("who won the world cup in 1998", 5, now=NOW).memories == ()
    assert len(limits) == 1


@pytest.mark.parametrize("least", [math.nan, -1, 2, "much", True, math.inf])
def test_a_least_relevance_outside_0_to_1_is_refused_by_name(memory: Memory, least: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        memory.recall("login", min_relevance=least)
    assert caught.value.field == "min_relevance"


@pytest.mark.parametrize("least", ["nan", "-1", "2", '"much"'])
def test_a_setting_outside_0_to_1_is_refused_by_name(tmp_path: Path, least: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"[recall]\nmin_relevance = {least}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="min_relevance"):
        load_settings(file, {})


def test_the_setting_is_the_default_and_the_option_wins(tmp_path: Path, embedder: Embedder) -> None:
    settings = Settings(recall=RecallSettings(min_relevance=0.0))
    with Memory.open(tmp_path / "open", embedder=embedder, settings=settings) as memory:
        memory.ingest([message(number, text) for number, text in enumerate(TALK)], now=NOW)
        assert len(memory.recall("who won the world cup", now=NOW).memories) == 5
        assert memory.recall("who won the world cup", now=NOW, min_relevance=0.6).memories == ()


def test_with_an_uncalibrated_model_nothing_is_left_out(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "other", embedder=MadeVectors()) as memory:
        memory.ingest([message(number, text) for number, text in enumerate(TALK)], now=NOW)
        found = memory.recall("who won the world cup", now=NOW).memories
        assert len(found) == 5
        assert {one.relevance for one in found} == {None}
        assert memory.recall("cello", mode="lexical", now=NOW).memories[0].relevance is not None


def test_a_memory_that_runs_used_repeatedly_for_a_request_stays_without_resembling_it(
    tmp_path: Path, embedder: Embedder
) -> None:
    request = "the nightly export of the ledger stopped half way"
    settings = Settings(learning=LearningSettings(mode="on"))
    with Memory.open(tmp_path / "used", embedder=embedder, settings=settings) as memory:
        kept = memory.remember("Per keeps the spare key under the flower pot", now=NOW)
        for number, text in enumerate(TALK):
            memory.remember(text, now=NOW, session_id=f"s{number}")
        assert memory.recall(request, now=NOW).memories == ()
        for _ in range(6):
            shown = memory.recall(request, now=NOW, min_relevance=0)
            memory.feedback(shown.recall_id, [kept.id], 1.0, now=NOW)
        found = memory.recall(request, now=NOW).memories
        assert [one.record.id for one in found] == [kept.id]
        assert found[0].learned > 0
        assert found[0].learned == found[0].explanation["learned"]
        assert found[0].relevance is not None
        assert found[0].relevance < RecallSettings().min_relevance


@pytest.mark.parametrize("time", ["two weeks ago", "last week", "3 days ago", "on Monday", "on 1 February 2026"])
def test_an_answer_need_not_repeat_the_words_of_a_date(pottery: Memory, time: str) -> None:
    def arrival(query: str, **options: Any) -> float:
        found = pottery.recall(query, min_relevance=0, reference_time=NOW, **options).memories
        return next(one.relevance for one in found if one.record.text == TALK[0]) or 0.0

    untimed = arrival("what arrived?")
    for query in (f"what arrived {time}?", f"{time}, what arrived?"):
        assert arrival(query) > untimed - 0.01
        assert arrival(query, dates="ignore") < untimed - 0.05
    assert pottery.recall(f"who won the world cup {time}?", reference_time=NOW).memories == ()


def test_a_question_about_a_time_alone_is_answered_by_memories_of_that_time(pottery: Memory) -> None:
    """The question has no content that a memory could resemble."""
    found = pottery.recall("what did we do on 2026-02-01?", 10, now=NOW, reference_time=NOW)
    assert found.dates
    assert sorted(texts(found)) == sorted(TALK)
    assert pottery.recall("which cello strings broke in Tokyo on 2026-02-01 and who paid?", now=NOW).dates
