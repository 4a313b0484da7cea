"""Test the measurement of relevance in small stores, with the real model."""

from __future__ import annotations

from collections import Counter

from memory_agent.embedders import open_embedder
from memory_agent.settings import Settings
from ops.bench import paraphrases


def test_each_question_is_asked_of_one_memory_alone() -> None:
    given = paraphrases.read()
    asked = [question for one in given.memory for question in one.asked] + given.unrelated
    assert len(given.memory) >= 40
    assert {count for _, count in Counter(asked).items()} == {1}
    assert len({one.text for one in given.memory}) == len(given.memory)


def test_small_stores_answer_what_is_asked_in_other_words_and_refuse_the_rest() -> None:
    given = paraphrases.read()
    few = paraphrases.Paraphrases(given.memory[7:31:2], given.unrelated[:12])
    embedder = open_embedder(Settings().embedder)
    try:
        one, three = paraphrases.measure(few, [1, 3], embedder)
    finally:
        embedder.close()
    for shares in (one, three):
        assert shares.kept > 0.4
        assert min(shares.others_refused, shares.unrelated_refused) > 0.9
    text = paraphrases.page([one, three], few)
    assert f"| 1 | {one.kept:.2f} |" in text
    assert "12 memories" in text
