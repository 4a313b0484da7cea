"""The lanes remain usable after Ctrl-C at any point in a caller's thread."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from interrupting import interrupt_everywhere
from witness import WAIT_S

import relay.locks
from memory_agent.embedders import lanes as lanes_module
from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import MiniLM
from relay import future as future_module

INTERRUPTED = (lanes_module, future_module, relay.locks, threading, contextlib)
QUERY, TEXTS = "why does the deploy hang", ["the tunnel was down", "the lease expired"]


@pytest.fixture
def model(int8_model: MiniLM) -> MiniLM:
    int8_model.embed_query("the first one takes longer")
    return int8_model


def opened(model: MiniLM) -> LanedEmbedder:
    return LanedEmbedder(model, query_threads=1, bulk_threads=1, steady_threads=0)


def use(embedder: LanedEmbedder) -> None:
    """Check that the interrupted request, another query and other texts are answered, and that closing returns."""
    asked = [embedder.begin_query_words(text, WAIT_S) for text in (QUERY, "another")]
    assert all(np.isfinite(one.result().vector).all() for one in asked)
    assert len(embedder.embed_passages([*TEXTS, "another"])) == 3
    embedder.close()


def use_idle(embedder: LanedEmbedder) -> None:
    """Check the same after the query thread has finished the interrupted request and is idle."""
    assert len(embedder.embed_passages(["one text", "and another"])) == 2  # takes longer than a query
    assert np.isfinite(embedder.begin_query_words("a third", WAIT_S).result().vector).all()
    embedder.close()


def test_waiting_for_a_query(model: MiniLM) -> None:
    def ask(embedder: LanedEmbedder) -> None:
        embedder.begin_query_words(QUERY).result()

    assert len(interrupt_everywhere(INTERRUPTED, lambda: opened(model), ask, use)) > 30
    assert len(interrupt_everywhere(INTERRUPTED, lambda: opened(model), ask, use_idle)) > 30


def test_waiting_for_texts(model: MiniLM) -> None:
    def embed(embedder: LanedEmbedder) -> None:
        embedder.embed_passages(TEXTS, lambda *_: None)

    assert len(interrupt_everywhere(INTERRUPTED, lambda: opened(model), embed, use)) > 30


def test_closing(model: MiniLM) -> None:
    def close(embedder: LanedEmbedder) -> None:
        embedder.close()

    assert len(interrupt_everywhere(INTERRUPTED, lambda: opened(model), close, close)) > 10
