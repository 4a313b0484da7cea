"""Words by slot: similarities match a numpy computation, and changes behave like changes to a dict."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_agent.errors import IndexDamagedError
from memory_agent.storage.changes import Words
from memory_agent.storage.passages import WordBits, WordBitsView

Held = dict[int, Words | None]

WIDTH = 6
counts_of_words = st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=12)
seeds = st.integers(0, 2**32)


def made(rng: np.random.Generator, count: int | None, width: int = WIDTH) -> Words | None:
    if count is None:
        return None
    return Words(rng.integers(0, 256, (count, width), dtype=np.uint8), int(rng.integers(1, 500)))


def asked(rng: np.random.Generator, count: int, width: int = WIDTH) -> np.ndarray:
    """Return (count, d) unit vectors of a query's words, in float16 like a model's output."""
    vectors = rng.normal(size=(count, 8 * width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def nearest(query: np.ndarray, words: Words | None) -> np.ndarray:
    """Return each query word's similarity to the nearest word, in float64, or NaN if there are no words."""
    if words is None or not len(words.bits):
        return np.full(len(query), np.nan)
    signs = np.where(np.unpackbits(words.bits, axis=1), 1.0, -1.0)
    return (query.astype(np.float64) @ signs.T / np.sqrt(query.shape[1])).max(axis=1)


def rounding(query: np.ndarray) -> float:
    """Return the maximum error of rounding to steps of 1/127 of the largest component."""
    return float(np.abs(query).max(initial=0.0)) * np.sqrt(query.shape[1]) / 254 + 1e-6


def check(view: WordBitsView, held: Held, query: np.ndarray, slots: list[int]) -> None:
    found = view.similarities(query, np.array(slots, dtype=np.int64))
    expected = np.array([nearest(query, held[slot]) for slot in slots]).reshape(len(slots), len(query)).T
    assert found.shape == (len(query), len(slots))
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.allclose(found, expected, rtol=0, atol=rounding(query), equal_nan=True)


@given(counts_of_words, st.integers(0, 4), seeds, st.data())
@settings(deadline=None)
def test_similarities_are_those_of_the_nearest_word(
    counts: list[int | None], queries: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    held = {slot: made(rng, count) for slot, count in enumerate(counts)}
    bits = WordBits()
    bits.append(list(held.values()))
    slots = data.draw(st.lists(st.integers(0, len(held) - 1), max_size=20))
    check(bits.view(), held, asked(rng, queries), slots)


def test_many_memories_are_compared_in_bounded_memory() -> None:
    rng = np.random.default_rng(2)
    held = {slot: made(rng, None if slot % 7 == 0 else 12) for slot in range(4_100)}
    bits = WordBits()
    bits.append(list(held.values()))
    view, query = bits.view(), asked(rng, 40)
    check(view, held, query, list(reversed(held)))
    few, most = (peak_bytes(view, query, slots) for slots in (1_000, 4_100))
    assert most < 1.5 * few + 8 * len(query) * 4_100


def peak_bytes(view: WordBitsView, query: np.ndarray, slots: int) -> int:
    tracemalloc.start()
    try:
        view.similarities(query, np.arange(slots))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_words_of_a_model_are_compared_within_two_thousandths() -> None:
    rng = np.random.default_rng(1)
    words = made(rng, 2_000, 48)
    bits = WordBits()
    bits.append([words])
    one_each = WordBits()
    assert words is not None
    one_each.append([Words(words.bits[i : i + 1], 1) for i in range(2_000)])
    query = asked(rng, 10, 48)
    signs = np.where(np.unpackbits(words.bits, axis=1), 1.0, -1.0)
    exact = query.astype(np.float64) @ signs.T / np.sqrt(384)
    error = np.abs(one_each.view().similarities(query, np.arange(2_000)) - exact)
    assert error.max() < 0.002
    assert error.mean() < 0.0005
    assert np.abs(bits.view().similarities(query, np.array([0]))[:, 0] - exact.max(axis=1)).max() < 0.002


def test_a_word_is_nearest_to_its_own_signs_and_opposite_to_their_inverse() -> None:
    query = asked(np.random.default_rng(2), 1, 48)
    own = np.packbits(query > 0, axis=1)
    bits = WordBits()
    bits.append([Words(own, 1), Words(~own, 1)])
    same, opposite = bits.view().similarities(query, np.array([0, 1]))[0]
    assert same == pytest.approx(np.abs(query.astype(np.float64)).sum() / np.sqrt(384), abs=0.002)
    assert same == pytest.approx(-opposite)
    assert 0.7 < same <= 1.0


def test_a_word_without_a_direction_is_similar_to_nothing() -> None:
    bits = WordBits()
    bits.append([made(np.random.default_rng(3), 4)])
    query = np.zeros((2, 8 * WIDTH), dtype=np.float16)
    assert bits.view().similarities(query, np.array([0])).tolist() == [[0.0], [0.0]]


def test_words_of_other_dimensions_are_not_compared_and_not_taken() -> None:
    rng = np.random.default_rng(4)
    bits = WordBits()
    bits.append([made(rng, 4)])
    assert np.isnan(bits.view().similarities(asked(rng, 2, WIDTH + 1), np.array([0]))).all()
    with pytest.raises(IndexDamagedError):
        bits.append([made(rng, 1, WIDTH + 1)])
    with pytest.raises(IndexDamagedError):
        bits.set(np.array([0]), [1], [1], np.zeros((1, WIDTH + 1), np.uint8))


@given(seeds, st.lists(st.sampled_from(["append", "set", "remove", "keep"]), max_size=25))
@settings(deadline=None)
def test_any_history_equals_that_of_a_dict(seed: int, steps: list[str]) -> None:
    rng = np.random.default_rng(seed)
    bits, held = WordBits(2), Held({0: None, 1: None})
    former: list[tuple[WordBitsView, Held]] = []
    for step in steps:
        some = np.flatnonzero(rng.random(len(held)) < 0.4)
        if step == "append":
            added = [made(rng, None if rng.random() < 0.3 else int(rng.integers(0, 4))) for _ in range(3)]
            held |= dict(enumerate(added, len(held)))
            bits.append(added)
        elif step == "set":
            words = rng.integers(0, 256, (2 * len(some), WIDTH), dtype=np.uint8)
            held |= {slot: Words(words[2 * i : 2 * i + 2], 7) for i, slot in enumerate(some.tolist())}
            bits.set(some, [7] * len(some), [2] * len(some), words)
        elif step == "remove":
            held |= dict.fromkeys(some.tolist())
            bits.remove(some)
        else:
            held = dict(enumerate(held[slot] for slot in some.tolist()))
            bits = bits.keep(some)
        former.append((bits.view(), dict(held)))
    query = asked(rng, 3)
    view = bits.view()
    assert view.count == sum(words is not None for words in held.values())
    assert view.known.tolist() == [words is not None for words in held.values()]
    assert view.lengths.tolist() == [0 if words is None else words.length for words in held.values()]
    check(view, held, query, list(held)[::-1])
    if former:
        earlier, then = former[0]
        assert earlier.known.tolist() == [words is not None for words in then.values()]
