"""Test the benchmark of queries during bulk work: the verdict when the result exactly equals the target, and the texts
used.
"""

from __future__ import annotations

import pytest

from memory_agent.embedders.lanes import usable_cores
from memory_agent.embedders.minilm import open_minilm
from memory_agent.embedders.weights import PACKAGE, cache_folder
from memory_agent.errors import ModelMissingError
from memory_agent.settings import EmbedderSettings
from ops.bench import load
from ops.bench.rows import load_rows


@pytest.mark.parametrize(("p50", "p99", "reached"), [(0.2, 1.0, True), (0.2, 1.01, False), (-0.1, 0.4, True)])
def test_a_query_may_be_delayed_by_one_embedding_and_no_more(p50: float, p99: float, reached: bool) -> None:
    one = {"median": 1.0, "least": 1.0, "most": 1.0}
    idle = {"p50_ms": one, "p99_ms": 1.0, "delay_in_embeddings": {"p50": 0.0, "p99": 0.0}}
    loaded = {"p50_ms": one, "p99_ms": 1.0, "delay_in_embeddings": {"p50": p50, "p99": p99}, "bulk_per_s": one}
    figures = {"longest_ms": 66.0, "target_embeddings": 1.0, "lanes": {"idle": idle}, "rpc": {"ingesting": loaded}}
    assert [row.reached for row in load_rows(figures)] == [None, None, reached]


def test_the_longest_texts_are_cut_at_256_tokens_and_none_comes_twice() -> None:
    try:
        model = open_minilm(EmbedderSettings(allow_download=False), cache_folder(), PACKAGE)
    except ModelMissingError as error:
        pytest.skip(str(error))
    texts = load._longest(60, seed=7)
    assert len(set(texts)) == 60
    assert {model.encode(text).shape[1] for text in texts} == {256}
    block, alone, beside = load._in_lanes(model, usable_cores(), seed=3)
    assert len(block) == load._QUESTIONS
    assert alone > 0 < beside
