"""Test the defaults of each recall profile, and the block in the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from memory_samples import NOW, open_without_model

from memory_agent.embedders import Embedder
from memory_agent.errors import InvalidInputError
from memory_agent.memory import Memory
from memory_agent.recall.context import context_block, estimate_tokens
from memory_agent.recall.query import PROFILE_DEFAULTS
from memory_agent.records.memories import KINDS, PROFILES, MemoryFilter, Profile


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Memory]:
    """Six memories of each kind about one subject. Read-only."""
    with Memory.open(tmp_path_factory.mktemp("filled") / "alice", embedder=embedder) as memory:
        for number in range(6):
            for kind in KINDS:
                memory.remember(f"The release of version {number} as {kind}: tag, build, then announce", kind, now=NOW)
        yield memory


def test_every_profile_has_defaults() -> None:
    assert tuple(PROFILE_DEFAULTS) == PROFILES == get_args(Profile)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_sets_the_number_and_kinds_of_memories(filled: Memory, profile: Profile) -> None:
    found = filled.recall("how do we release", profile=profile).memories
    fetch = PROFILE_DEFAULTS[profile]
    assert len(found) == fetch.top_k
    assert {memory.record.kind for memory in found} <= set(fetch.kinds or KINDS)


def test_the_callers_values_override_the_profile(filled: Memory) -> None:
    found = filled.recall("how do we release", 6, MemoryFilter(kinds=("episode",)), profile="document").memories
    assert (len(found), {memory.record.kind for memory in found}) == (6, {"episode"})


def test_other_conditions_of_the_caller_are_kept(filled: Memory) -> None:
    assert filled.recall("release", filter=MemoryFilter(session_id="none"), profile="document").memories == ()


def test_an_unknown_profile_is_refused_by_name(filled: Memory) -> None:
    with pytest.raises(InvalidInputError) as caught:
        filled.recall("release", profile="bedtime")  # type: ignore[arg-type]
    assert caught.value.field == "profile"
    assert "before_planning" in str(caught.value)


def test_the_parts_of_a_query_are_searched_as_one_text(filled: Memory) -> None:
    parts = ["We tagged version 3 last week.", "How do we announce it?"]
    whole = filled.recall("\n".join(parts), reference_time=NOW, min_relevance=0)
    for query in (parts, tuple(parts)):
        found = filled.recall(query, reference_time=NOW, min_relevance=0)
        assert [(one.record.id, one.sona_score) for one in found.memories] == [
            (one.record.id, one.sona_score) for one in whole.memories
        ]
        assert found.dates == whole.dates != ()


@pytest.mark.parametrize(
    ("query", "field"), [(["tag", 7], "query[1]"), ([], "query"), (["", " "], "query"), ({"text": "tag"}, "query")]
)
def test_invalid_parts_of_a_query_are_refused(filled: Memory, query: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        filled.recall(query)
    assert caught.value.field == field


@pytest.mark.parametrize("tokens", [60, 128, 500])
def test_the_block_comes_with_the_answer_within_its_tokens_by_the_tokenizer(
    filled: Memory, embedder: Embedder, tokens: int
) -> None:
    result = filled.recall("how do we release", context_tokens=tokens, reference_time=NOW)
    assert result.context is not None
    assert "tag, build" in result.context
    assert embedder.count_tokens(result.context) <= tokens
    assert result.context == context_block(result, tokens, now=NOW, count_tokens=embedder.count_tokens)


def test_no_block_is_rendered_without_a_request(filled: Memory) -> None:
    assert filled.recall("how do we release").context is None


def test_the_same_question_gives_the_same_block(filled: Memory) -> None:
    blocks = {filled.recall("release version 3", context_tokens=300, reference_time=NOW).context for _ in range(5)}
    assert len(blocks) == 1


def test_without_a_model_the_block_keeps_within_the_estimate(tmp_path: object) -> None:
    with open_without_model(tmp_path / "u") as memory:  # type: ignore[operator]
        memory.remember("The release: tag, build, announce. " * 40, now=NOW)
        block = memory.recall("release", context_tokens=150).context
    assert block
    assert estimate_tokens(block) <= 150


@pytest.mark.parametrize("tokens", [0, -1, 1.5, True, 10**9])
def test_an_impossible_budget_is_refused(filled: Memory, tokens: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        filled.recall("release", context_tokens=tokens)  # type: ignore[arg-type]
    assert caught.value.field == "context_tokens"
