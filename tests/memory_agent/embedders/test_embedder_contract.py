"""The contract of every embedder, in this process and behind a socket."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from embedder_inputs import SENTENCES

from memory_agent.embedders import Embedder, comparable
from memory_agent.embedders.minilm import MiniLM
from memory_agent.errors import EmbedderUnavailableError, InvalidInputError


@pytest.fixture(params=["laned", "remote"])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    embedder: Embedder = request.getfixturevalue(request.param)
    return embedder


def test_it_satisfies_the_protocol(embedder: Embedder) -> None:
    assert isinstance(embedder, Embedder)


def test_vectors_are_float32_of_unit_length(embedder: Embedder) -> None:
    vectors = embedder.embed_texts(SENTENCES)
    assert vectors.shape == (len(SENTENCES), embedder.info.ndim) == (len(SENTENCES), 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_the_same_text_has_the_same_bits_alone_in_bulk_repeated_and_as_a_query(embedder: Embedder) -> None:
    together = embedder.embed_texts([*SENTENCES, *SENTENCES[::-1]])
    for position, text in enumerate(SENTENCES):
        assert np.array_equal(together[position], together[-1 - position])
        assert np.array_equal(together[position], embedder.embed_texts([text])[0])
        assert np.array_equal(together[position], embedder.embed_query(text))


def test_both_embedders_give_the_bits_of_the_model(embedder: Embedder, int8_model: MiniLM) -> None:
    for text in SENTENCES:
        assert np.array_equal(embedder.embed_query(text), int8_model.embed(text))


def test_a_query_begun_is_embedded_while_the_caller_does_something_else(embedder: Embedder, int8_model: MiniLM) -> None:
    pending = [embedder.begin_query(text) for text in SENTENCES]
    assert embedder.embed_query("meanwhile").shape == (384,)
    for text, query in zip(reversed(SENTENCES), reversed(pending), strict=True):
        assert np.array_equal(query.result(), int8_model.embed(text))


def test_texts_begun_are_embedded_while_the_caller_does_something_else(embedder: Embedder, int8_model: MiniLM) -> None:
    texts = [f"text {number}" for number in range(200)]
    pending, other = embedder.begin_texts(texts), embedder.begin_texts(SENTENCES)
    embedder.begin_texts(["dropped"])
    assert embedder.embed_query("meanwhile").shape == (384,)
    assert np.array_equal(other.result(), np.array([int8_model.embed(text) for text in SENTENCES]))
    assert np.array_equal(pending.result()[::40], np.array([int8_model.embed(text) for text in texts[::40]]))


def test_queries_begun_may_be_dropped(embedder: Embedder, int8_model: MiniLM) -> None:
    for number in range(20):
        embedder.begin_query(f"dropped {number}")
    assert np.array_equal(embedder.embed_query("wanted"), int8_model.embed("wanted"))


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    assert embedder.embed_texts([]).shape == (0, 384)


def test_texts_without_words_have_one_finite_vector(embedder: Embedder) -> None:
    vectors = embedder.embed_texts(["", "   ", "\n\t", "\x00", "\u200b"])
    assert np.isfinite(vectors).all()
    assert all(np.array_equal(vectors[0], vector) for vector in vectors)


def test_a_lone_surrogate_is_refused_and_named_before_anything_is_embedded(embedder: Embedder) -> None:
    steps: list[int] = []
    with pytest.raises(InvalidInputError, match=r"texts\[1\]: is not valid Unicode"):
        embedder.embed_texts(["fine", "broken \ud800 text"], lambda done, _: steps.append(done))
    with pytest.raises(InvalidInputError, match="text: is not valid Unicode"):
        embedder.embed_query("\udfff")
    assert steps == []


def test_input_that_is_not_text_is_refused(embedder: Embedder) -> None:
    with pytest.raises(InvalidInputError, match="must be text, not bytes"):
        embedder.embed_query(b"bytes")  # type: ignore[arg-type]


def test_progress_rises_to_the_number_of_texts(embedder: Embedder) -> None:
    steps: list[tuple[int, int]] = []
    embedder.embed_texts([f"text {number}" for number in range(150)], lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1] == (150, 150)


def test_an_error_in_progress_reaches_the_caller_and_leaves_the_embedder_usable(embedder: Embedder) -> None:
    def refuse(_done: int, _total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        embedder.embed_texts([f"refused {number}" for number in range(70)], refuse)
    assert embedder.embed_texts(["after"]).shape == (1, 384)


def test_tokens_are_counted_without_special_tokens_and_without_truncation(embedder: Embedder) -> None:
    assert embedder.count_tokens("") == 0
    assert embedder.count_tokens("hello world") == 2
    assert embedder.count_tokens("word " * 1000) == 1000


def test_a_caller_may_modify_the_returned_vectors(embedder: Embedder) -> None:
    before = embedder.embed_query("kept").copy()
    changed = embedder.embed_query("kept")
    changed *= 2
    assert np.array_equal(embedder.embed_query("kept"), before)


def test_many_threads_get_the_same_bits_as_one(embedder: Embedder) -> None:
    texts = [f"thread text {number}" for number in range(24)]
    expected = embedder.embed_texts(texts)
    wrong: list[str] = []

    def ask(part: list[int]) -> None:
        wrong.extend(texts[i] for i in part if not np.array_equal(embedder.embed_query(texts[i]), expected[i]))

    threads = [threading.Thread(target=ask, args=(list(range(start, 24, 4)),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_closed_embedder_is_unavailable(embedder: Embedder) -> None:
    embedder.close()
    with pytest.raises(EmbedderUnavailableError):
        embedder.embed_query("too late")
    with pytest.raises(EmbedderUnavailableError):
        embedder.embed_texts(["too late"])
    # `result` raises all errors except the error for an invalid text
    for pending in (embedder.begin_query("too late"), embedder.begin_texts(["too late"]), embedder.begin_texts([])):
        with pytest.raises(EmbedderUnavailableError):
            pending.result()


def test_the_bits_are_the_same_in_another_process(int8_model: MiniLM, model_cache: Path) -> None:
    program = (
        "import hashlib, sys; from pathlib import Path\n"
        "from memory_agent.settings import EmbedderSettings\n"
        "from memory_agent.embedders import open_embedder\n"
        "e = open_embedder(EmbedderSettings(scheme='int8', allow_download=False), cache=Path(sys.argv[1]))\n"
        "print(e.info.stamp); print(hashlib.sha256(e.embed_texts(sys.argv[2:]).tobytes()).hexdigest()); e.close()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(model_cache), *SENTENCES], capture_output=True, text=True, check=True
    )
    here = hashlib.sha256(b"".join(int8_model.embed(text).tobytes() for text in SENTENCES)).hexdigest()
    assert result.stdout.split("\n")[:2] == [int8_model.info.stamp, here]


def test_stamps_distinguish_schemes_and_decide_what_is_comparable(int8_model: MiniLM, float32_model: MiniLM) -> None:
    stamp, other = int8_model.info.stamp, float32_model.info.stamp
    assert stamp != other
    assert comparable(stamp, other)
    assert not comparable(stamp, stamp.replace("53aa", "0000"))
    assert not comparable(stamp, "written by an older version")
