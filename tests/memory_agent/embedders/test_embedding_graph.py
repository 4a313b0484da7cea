"""Compares the exported graph with BERT computed in numpy, and int8 with float32."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from bert_reference import Reference, write_random_model
from embedder_inputs import FLOAT32, INT8, SENTENCES
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.embedders.cache import obtain
from memory_agent.embedders.graph import export_graph, quantise_columns
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.schemes import choose_scheme
from memory_agent.embedders.weights import TOKENIZER, WEIGHTS, Model
from memory_agent.embedders.wordpiece import WordPiece
from memory_agent.errors import ModelError

SATURATES = choose_scheme("int8").kernels == "saturating"
"""Whether this processor sums int8 products in 16 bits (no VNNI), so that large sums saturate.

Minimum cosine to float32, with these kernels / without saturation at the same scales: this model .9929 / .9956 (mean
.9957 / .9978), real dialogue .9887 / .9934 (mean .9960 / .9976, top-10 overlap .936 / .946), the random model .9709 /
.9996. Saturation affects the random model most, because the products are large relative to the model's width of 64.
"""


@pytest.fixture(scope="module")
def wordpiece(official: Model) -> WordPiece:
    assert official.folder is not None
    return WordPiece((official.folder / TOKENIZER).read_bytes(), 256)


@pytest.fixture(scope="module")
def expected(official: Model, wordpiece: WordPiece) -> np.ndarray:
    assert official.folder is not None
    reference = Reference(official.folder / WEIGHTS, heads=12, epsilon=1e-12)
    return np.array([reference.embed(wordpiece.encode(text)[0]) for text in SENTENCES])


def test_float32_equals_the_reference(float32_model: MiniLM, expected: np.ndarray) -> None:
    vectors = np.array([float32_model.embed(text) for text in SENTENCES])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_int8_stays_close_to_the_reference(int8_model: MiniLM, expected: np.ndarray) -> None:
    cosines = [float(int8_model.embed(text) @ row) for text, row in zip(SENTENCES, expected, strict=True)]
    assert min(cosines) >= (0.985 if SATURATES else 0.99)
    assert np.mean(cosines) >= (0.99 if SATURATES else 0.995)


def test_padding_behind_the_mask_changes_nothing_in_float32(float32_model: MiniLM, wordpiece: WordPiece) -> None:
    rows = [wordpiece.encode(text)[0] for text in SENTENCES]
    ids = np.zeros((len(rows), 256), dtype=np.int32)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    alone = np.array([float32_model.embed(text) for text in SENTENCES])
    np.testing.assert_allclose(float32_model.embed_ids(ids, mask), alone, atol=1e-5)


def test_int8_finds_the_neighbours_that_float32_finds(
    int8_model: MiniLM, float32_model: MiniLM, real_sentences: list[str]
) -> None:
    small = np.array([int8_model.embed(text) for text in real_sentences])
    large = np.array([float32_model.embed(text) for text in real_sentences])
    cosines = (small * large).sum(axis=1)
    assert cosines.min() >= 0.985
    assert cosines.mean() >= 0.995
    assert np.mean([len(a & b) / 10 for a, b in zip(_top(small), _top(large), strict=True)]) >= 0.92


def _top(vectors: np.ndarray) -> list[set[int]]:
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return [set(row) for row in np.argsort(-scores, axis=1)[:, :10].tolist()]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_another_model_in_a_named_folder_equals_its_reference(tmp_path: Path, official: Model, pooling: str) -> None:
    assert official.folder is not None
    folder = tmp_path / "other-model"
    write_random_model(folder, official.folder / TOKENIZER, pooling=pooling)
    settings = msgspec.structs.replace(FLOAT32, folder=str(folder))
    model = MiniLM(obtain(settings, tmp_path / "cache"), settings.max_tokens)
    assert (model.info.model, model.info.ndim) == ("other-model", 64)
    assert model.info.runtime.endswith("tokens-128")  # the model has only 128 positions
    reference = Reference(folder / WEIGHTS, heads=4, epsilon=1e-12, pooling=pooling)
    wordpiece = WordPiece((folder / TOKENIZER).read_bytes(), 128)
    for text in SENTENCES:
        np.testing.assert_allclose(model.embed(text), reference.embed(wordpiece.encode(text)[0]), atol=1e-5)


def test_the_int8_graph_of_another_model_stays_close_too(tmp_path: Path, official: Model) -> None:
    assert official.folder is not None
    folder = tmp_path / "other-model"
    write_random_model(folder, official.folder / TOKENIZER, pooling="mean")
    settings = msgspec.structs.replace(INT8, folder=str(folder))
    model = MiniLM(obtain(settings, tmp_path / "cache"), settings.max_tokens)
    reference = Reference(folder / WEIGHTS, heads=4, epsilon=1e-12)
    wordpiece = WordPiece((folder / TOKENIZER).read_bytes(), 128)
    cosines = [float(model.embed(text) @ reference.embed(wordpiece.encode(text)[0])) for text in SENTENCES]
    assert min(cosines) >= (0.96 if SATURATES else 0.99)


def test_the_same_weights_give_the_same_graph(official: Model) -> None:
    assert official.folder is not None
    weights = official.folder / WEIGHTS
    assert export_graph(weights, official.shape, "int8") == export_graph(weights, official.shape, "int8")


def test_weights_of_another_shape_are_refused(official: Model) -> None:
    assert official.folder is not None
    deeper = msgspec.structs.replace(official.shape, layers=12)
    with pytest.raises(ModelError, match="not a BERT encoder with 12 layers"):
        export_graph(official.folder / WEIGHTS, deeper, "float32")


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_quantised_columns_restore_the_matrix_within_half_a_step(
    rows: int, columns: int, seed: int, scale: float
) -> None:
    matrix = (np.random.default_rng(seed).normal(0, scale, (rows, columns))).astype(np.float32)
    values, scales = quantise_columns(matrix)
    assert values.dtype == np.int8
    assert np.abs(values.astype(int)).max() <= 127
    error = np.abs(values.astype(np.float64) * scales - matrix)
    assert (error <= 0.5001 * scales).all()


def test_a_column_of_zeros_stays_zero() -> None:
    values, scales = quantise_columns(np.zeros((4, 2), dtype=np.float32))
    assert not values.any()
    assert np.isfinite(scales).all()
