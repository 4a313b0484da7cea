"""Token counts of a block: the upper bound holds for the real tokenizer, and counting ends by a recall's deadline."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_samples import NOW, open_without_model

from memory_agent.embedders import Embedder, EmbedderInfo, LazyEmbedder, PendingVector, PendingVectors, Progress
from memory_agent.errors import EmbedderUnavailableError
from memory_agent.memory import Memory
from memory_agent.recall.context import _WHOLE, context_block, estimate_tokens
from memory_agent.recall.pipeline import TokenCounter
from memory_agent.recall.query import Deadline
from memory_agent.records.memories import MemoryRecord, RecallResult, RetrievedMemory
from memory_agent.settings import EmbedderSettings

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
letters = st.text(string.ascii_letters + "aeiouqxwvz'-09", max_size=200)
glue = st.sampled_from(["", " ", "-", "\n", "\x0b", "\x1c", "\u0301", "\u200d", "\xa0", "é", "x", "中", "_", "0"])
words = st.lists(st.tuples(st.sampled_from(sorted(_WHOLE)), glue)).map(lambda pairs: "".join(map("".join, pairs)))
foreign = st.text(
    st.one_of(
        st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF),  # Chinese
        st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3),  # Hangul
        st.characters(min_codepoint=0x1F300, max_codepoint=0x1FAFF),  # emoji
        st.characters(min_codepoint=0x2000, max_codepoint=0x2BFF),  # symbols
        st.characters(categories=["Mn", "Me", "Mc"]),
        st.characters(min_codepoint=0x00C0, max_codepoint=0x024F),  # letters with diacritics
        st.sampled_from("aeqz \n\u200d\ufe0f\u212a\u0130"),
    ),
    max_size=120,
)
texts = any_text | letters | words | foreign
real = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@real
@given(texts)
def test_the_estimate_is_never_below_the_tokens_of_the_model(embedder: Embedder, text: str) -> None:
    assert embedder.count_tokens(text) <= estimate_tokens(text)


def test_no_character_has_more_tokens_than_its_estimate(embedder: Embedder) -> None:
    """Tests all assigned characters, and a sample of the others, which the vocabulary lacks and the tokenizer treats
    alike.
    """
    characters = [
        char
        for char in map(chr, range(0x110000))
        if (kind := unicodedata.category(char)) != "Cs" and (kind not in ("Cn", "Co") or ord(char) % 32 == 0)
    ]
    assert [hex(ord(c)) for c in characters if embedder.count_tokens(c) > max(1, estimate_tokens(c))] == []


def test_no_pair_of_letters_has_more_tokens_than_its_estimate(embedder: Embedder) -> None:
    """Checks the table of pairs against the vocabulary."""
    for first in string.ascii_lowercase:
        for second in string.ascii_lowercase:
            word = f"zq{(first + second) * 20}"
            assert embedder.count_tokens(word) <= estimate_tokens(word), word


def test_frequent_words_are_one_token(embedder: Embedder) -> None:
    assert [word for word in _WHOLE if embedder.count_tokens(word) != 1] == []


def test_english_comes_out_at_about_twice_its_tokens(embedder: Embedder) -> None:
    text = (
        "The deploy of the billing service hangs at the health check. It was the tunnel: reconnecting fixed it, "
        "and a later run built on that without any change to the settings of the service."
    )
    assert estimate_tokens(text) < 2.5 * embedder.count_tokens(text)


@real
@given(st.lists(texts, max_size=8))
def test_tokens_of_lines_add_up_to_those_of_the_whole(embedder: Embedder, lines: list[str]) -> None:
    for count in (embedder.count_tokens, estimate_tokens):
        assert count("\n".join(lines)) <= sum(map(count, lines))


def answer(*said: str) -> RecallResult:
    records = (MemoryRecord(id="m", text=t, source="user_input", kind="episode", timestamp=NOW) for t in said)
    found = (
        RetrievedMemory(record=r, score=None, lexical_score=1.0, sona_score=0.5, retrieval="lexical") for r in records
    )
    return RecallResult(recall_id="r", memories=tuple(found))


@real
@given(st.lists(texts, max_size=5), st.integers(0, 600))
def test_the_budget_holds_by_the_tokenizer_however_tokens_were_counted(
    embedder: Embedder, said: list[str], budget: int
) -> None:
    for count in (None, embedder.count_tokens):
        block = context_block(answer(*said), budget, now=NOW, count_tokens=count)
        assert embedder.count_tokens(block) <= budget


def remember_releases(memory: Memory, count: int) -> None:
    for number in range(count):
        memory.remember(f"The release, part {number}: tag, build, announce", now=NOW)


class Failing(Embedder):
    """The real embedder, with a tokenizer that counts `answers` texts and then times out."""

    def __init__(self, embedder: Embedder, answers: int) -> None:
        self._embedder = embedder
        self.answers = answers
        self.asked = 0

    @property
    def info(self) -> EmbedderInfo:
        return self._embedder.info

    def begin_query(self, text: str, timeout_s: float | None = None) -> PendingVector:
        return self._embedder.begin_query(text, timeout_s)

    def begin_texts(self, texts: Sequence[str], progress: Progress | None = None) -> PendingVectors:
        return self._embedder.begin_texts(texts, progress)

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        self.asked += 1
        if self.asked > self.answers:
            raise EmbedderUnavailableError("no answer")
        return self._embedder.count_tokens(text)

    def close(self) -> None:
        """Do nothing: the real embedder remains open."""


def late(embedder: object) -> LazyEmbedder:
    return LazyEmbedder(embedder, EmbedderSettings())  # type: ignore[arg-type]


def test_an_embedder_that_stops_answering_is_called_only_once_more(embedder: Embedder) -> None:
    failing, deadline = Failing(embedder, answers=2), Deadline(60_000)
    count = TokenCounter(late(failing), deadline)
    block = context_block(answer(*["tag, build, announce"] * 9), 400, now=NOW, count_tokens=count)
    assert (failing.asked, deadline.degraded) == (3, ["embedder_timeout"])
    assert block.count("tag, build") == 9
    assert embedder.count_tokens(block) <= 400


def test_tokens_are_estimated_after_the_deadline(embedder: Embedder) -> None:
    deadline = Deadline(60_000)
    count = TokenCounter(late(embedder), deadline)
    exact = count("tunnel maintenance")
    deadline.limit_s = 0.0
    assert count("tunnel maintenance") == estimate_tokens("tunnel maintenance") > exact
    assert deadline.degraded == ["deadline"]


def test_an_embedder_that_was_late_is_not_called_for_tokens(embedder: Embedder) -> None:
    failing, deadline = Failing(embedder, answers=0), Deadline(60_000)
    deadline.degrade("embedder_timeout")
    assert TokenCounter(late(failing), deadline)("a text") == estimate_tokens("a text")
    assert failing.asked == 0


def test_an_answer_with_estimated_tokens_is_degraded(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=Failing(embedder, answers=0)) as memory:  # type: ignore[arg-type]
        remember_releases(memory, 8)
        assert memory.recall("release", deadline_ms=60_000).degraded == ()
        result = memory.recall("release", context_tokens=150, deadline_ms=60_000)
    assert result.degraded == ("embedder_timeout",)
    assert "tag, build" in (result.context or "")


@pytest.mark.parametrize("budget", [1_000, 120])
def test_the_model_counts_tokens_only_if_a_block_may_be_too_long(
    tmp_path: Path, embedder: Embedder, budget: int
) -> None:
    counting = Failing(embedder, answers=10_000)
    with Memory.open(tmp_path / "alice", embedder=counting) as memory:  # type: ignore[arg-type]
        remember_releases(memory, 3)
        result = memory.recall("release", context_tokens=budget, deadline_ms=60_000, reference_time=NOW)
    assert (counting.asked == 0) == (budget == 1_000)
    assert result.context == context_block(result, budget, now=NOW, count_tokens=embedder.count_tokens)


class Dawdling(Failing):
    """The real embedder, with a slow tokenizer."""

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        assert timeout_s is not None
        deadline = Deadline(timeout_s * 1000 + 100)
        while deadline.remaining_s > 0:
            super().count_tokens(text)
        return super().count_tokens(text)


def test_the_time_of_the_block_counts_and_a_late_answer_is_marked(tmp_path: Path, embedder: Embedder) -> None:
    dawdling = Dawdling(embedder, answers=10**9)
    with Memory.open(tmp_path / "alice", embedder=dawdling) as memory:  # type: ignore[arg-type]
        remember_releases(memory, 8)
        result = memory.recall("release", context_tokens=150, deadline_ms=400)
    assert "deadline" in result.degraded
    assert result.took_ms > 400
    assert "tag, build" in (result.context or "")


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_without_any_model_nothing_is_late(tmp_path: Path, mode: str) -> None:
    with open_without_model(tmp_path / "u") as memory:
        memory.remember("The release: tag, build, announce", now=NOW)
        degraded = memory.recall("release", mode=mode, context_tokens=100).degraded  # type: ignore[arg-type]
    assert set(degraded) <= {"no_model", "vectors_pending"}
