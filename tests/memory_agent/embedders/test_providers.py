"""Embedders on servers: requests, checks of answers, and the effects of faults on a memory."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from provider_server import (
    NDIM,
    Provider,
    Reply,
    Request,
    answer,
    content,
    drip,
    embeds,
    hang,
    raw,
    serving,
    texts_of,
    vector_of,
)

from memory_agent import Memory
from memory_agent.embedders import open_embedder
from memory_agent.embedders.providers import ProviderEmbedder, type_of
from memory_agent.embedders.weights import MODELS
from memory_agent.errors import ModelError, ProviderError, ProviderInputError, ProviderUnavailableError
from memory_agent.settings import GeminiEmbedder, OllamaEmbedder, OpenAIEmbedder, RemoteEmbedder, load_settings

REFERENCE = Path(__file__).parents[3] / "ops" / "REFERENCE.md"
KEYS = ("OPENAI_API_KEY", "GEMINI_API_KEY")
KINDS: list[RemoteEmbedder] = [
    OllamaEmbedder(),
    OpenAIEmbedder(dimensions=NDIM),
    GeminiEmbedder(dimensions=NDIM),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=type_of)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    for name in KEYS:
        monkeypatch.setenv(name, "key-of-the-test")
    with serving() as server:
        yield server


@contextmanager
def opened(kind: RemoteEmbedder, provider: Provider, **changed: Any) -> Iterator[ProviderEmbedder]:
    embedder = open_embedder(msgspec.structs.replace(kind, url=provider.url, **changed))
    assert isinstance(embedder, ProviderEmbedder)
    with closing(embedder):
        provider.requests.clear()
        yield embedder


def sent(provider: Provider) -> list[list[str]]:
    return [texts_of(request.body) for request in provider.requests]


@each_kind
def test_vectors_are_of_unit_length_in_the_order_of_the_texts(kind: RemoteEmbedder, provider: Provider) -> None:
    provider.then(embeds(kind))
    with opened(kind, provider, passage_prefix="", query_prefix="") as embedder:
        texts = [f"text number {number}" for number in range(5)]
        vectors = embedder.embed_texts(texts)
        assert (vectors.shape, vectors.dtype, embedder.info.ndim) == ((5, NDIM), np.float32, NDIM)
        for text, vector in zip(texts, vectors, strict=True):
            expected = np.array(vector_of(text))
            np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)
        np.testing.assert_array_equal(embedder.embed_query(texts[3]), vectors[3])
        assert embedder.embed_texts([]).shape == (0, NDIM)
        assert embedder.provider_calls().tokens_read > 0


def test_requests_have_the_form_that_each_server_documents(provider: Provider) -> None:
    requests = {}
    for kind in KINDS:
        provider.then(embeds(kind))
        with opened(kind, provider, model="m") as embedder:
            embedder.embed_texts(["a"])
            embedder.embed_query("b")
            requests[type_of(kind)] = provider.requests[:]
    text, query = requests["ollama"]
    assert (text.path, text.body) == ("/api/embed", {"model": "m", "input": ["a"], "truncate": False})
    assert "authorization" not in text.headers
    text, query = requests["openai"]
    body = {"model": "m", "input": ["a"], "encoding_format": "float", "dimensions": NDIM}
    assert (text.path, text.body) == ("/embeddings", body)
    assert text.headers["authorization"] == "Bearer key-of-the-test"
    text, query = requests["gemini"]
    assert (text.path, text.headers["x-goog-api-key"]) == ("/models/m:batchEmbedContents", "key-of-the-test")
    asked = {"model": "models/m", "taskType": "RETRIEVAL_DOCUMENT", "outputDimensionality": NDIM}
    assert text.body == {"requests": [asked | {"content": {"parts": [{"text": "a"}]}}]}
    assert query.body["requests"][0]["taskType"] == "RETRIEVAL_QUERY"


def test_texts_are_sent_in_batches_and_equal_texts_once(provider: Provider) -> None:
    provider.then(embeds(KINDS[0]))
    with opened(KINDS[0], provider, batch=3, passage_prefix="") as embedder:
        vectors = embedder.embed_texts(["a", "b", "c", "a", "d", "", "  "])
        assert sorted(map(len, sent(provider))) == [2, 3]
        assert sorted(chain.from_iterable(sent(provider))) == [".", "a", "b", "c", "d"]
        np.testing.assert_array_equal(vectors[5], vectors[6])
        embedder.embed_texts(["a", "d"])
        assert len(provider.requests) == 2


def test_a_large_answer_is_avoided_by_smaller_batches(provider: Provider) -> None:
    wide = 3072
    provider.then(embeds(KINDS[0], ndim=wide))
    with opened(KINDS[0], provider, batch=2_048) as embedder:
        batches = embedder._batches({bytes([n % 256, n // 256]): "text" for n in range(1_000)})
        assert [len(batch) for batch in batches] == [873, 127]


def test_calls_in_progress_are_shared(provider: Provider) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reply(request: Request) -> None:
        begun.set()
        go_on.wait(30)
        embeds(KINDS[0])(request)

    provider.then(embeds(KINDS[0]))
    with opened(KINDS[0], provider) as embedder:
        provider.then(reply)
        first = embedder.begin_query("the same question", 20.0)
        assert begun.wait(30)
        again = embedder.begin_query("the same question", 20.0)
        go_on.set()
        np.testing.assert_array_equal(first.result(), again.result())
        assert len(provider.requests) == 1


def test_a_long_text_gets_several_vectors(provider: Provider) -> None:
    provider.then(embeds(KINDS[0]))
    text = " ".join(f"word{number}" for number in range(200))
    with opened(KINDS[0], provider, passage_chars=400, passage_prefix="") as embedder:
        (found,) = embedder.embed_passages([text])
    pieces = [text[start:end] for start, end in found.spans.tolist()]
    assert len(pieces) == len(found.vectors) == 5
    assert pieces == list(chain.from_iterable(sent(provider)))
    assert all(piece.startswith("word") for piece in pieces)
    assert set(" ".join(pieces).split()) == set(text.split())


def test_a_text_that_is_too_long_for_the_model_is_sent_in_halves(provider: Provider) -> None:
    provider.then(embeds(KINDS[0], longest=400))
    with opened(KINDS[0], provider, passage_prefix="") as embedder:
        assert np.isfinite(embedder.embed_texts(["one two " * 150])).all()
        assert [len(texts[0]) for texts in sent(provider)] == [1200, 600, 300, 300, 600, 300, 300]


def test_prefixes_of_known_models_are_added(provider: Provider) -> None:
    provider.then(embeds(KINDS[0]))
    with opened(KINDS[0], provider, model="nomic-embed-text:v1.5") as embedder:
        embedder.embed_texts(["note"])
        embedder.embed_query("note")
        assert sent(provider) == [["search_document: note"], ["search_query: note"]]
        assert embedder.info.prefixes


@each_kind
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda kind: answer(content(kind, [vector_of("a", NDIM + 1)])), "embedder.model"),
        (lambda kind: answer(content(kind, [])), "0 vectors for 1 texts"),
        (lambda kind: answer(content(kind, [[0.0] * NDIM])), "not finite or are zero"),
        (lambda kind: answer(content(kind, [[1e300] * NDIM])), "not finite or are zero"),
        (lambda kind: answer(content(kind, [[float("nan")] * NDIM])), "check embedder.url"),
        (lambda kind: raw(b"<html><body>Welcome</body></html>", content_type="text/html"), "text/html"),
        (lambda kind: answer({"error": {"message": "no"}}, 401), "the key was refused"),
    ],
    ids=["other width", "fewer", "zero", "overflow", "nan", "html", "revoked key"],
)
def test_an_unusable_answer_gives_no_vector(kind: RemoteEmbedder, provider: Provider, fault: Any, said: str) -> None:
    provider.then(embeds(kind))
    with opened(kind, provider) as embedder:
        provider.then(fault(kind))
        with pytest.raises(ProviderError, match=said):
            embedder.embed_texts(["text"])
        provider.then(fault(kind))
        with pytest.raises(ProviderError):
            embedder.embed_query("text", 5.0)


@pytest.mark.parametrize("fault", [hang, drip, answer({}, 429, retry_after="900")], ids=["hangs", "drips", "429"])
def test_a_memory_without_its_server_stores_everything_and_recalls_by_words(
    provider: Provider, tmp_path: Path, fault: Reply
) -> None:
    kind = msgspec.structs.replace(KINDS[0], url=provider.url, timeout_s=0.3)
    provider.then(embeds(kind))
    with Memory.open(tmp_path / "a", embedder_settings=kind) as memory:
        memory.remember("Staging needs the VPN")
        assert memory.recall("how do I reach staging?").degraded == ()
        provider.then(fault)
        memory.remember("The archive is in the cellar")
        result = memory.recall("where is the archive?", deadline_ms=3_000)
        assert result.memories[0].record.text == "The archive is in the cellar"
        assert result.degraded == ("embedder_timeout",)
        assert (memory.stats().without_vector, memory.fill_vectors()) == (1, 0)
    with Memory.open(tmp_path / "a", embedder_settings=kind) as memory:
        provider.then(embeds(kind))
        assert memory.fill_vectors() == 1
        assert memory.recall("where is the archive?").degraded == ()


def test_one_text_that_the_server_rejects_does_not_stop_the_others(provider: Provider, tmp_path: Path) -> None:
    kind = msgspec.structs.replace(KINDS[0], url=provider.url)

    def reply(request: Request) -> None:
        is_bad = any("poison" in text for text in texts_of(request.body))
        (answer({"error": "rejected"}, 400) if is_bad else embeds(kind))(request)

    provider.then(answer({}, 404))
    with Memory.open(tmp_path / "a", embedder_settings=kind) as memory:
        for number in range(20):
            memory.remember("poison" if number == 7 else f"memory number {number}")
        assert memory.stats().without_vector == 20
    provider.then(reply)
    with Memory.open(tmp_path / "a", embedder_settings=kind) as memory:
        assert memory.fill_vectors() == 19
        assert memory.recall("poison").memories[0].record.text == "poison"


def test_a_model_that_rejects_many_texts_replaces_no_vectors_and_is_reported(
    provider: Provider, tmp_path: Path
) -> None:
    former, kind = (msgspec.structs.replace(KINDS[0], url=provider.url, model=name) for name in ("old", "new"))

    def rejects(request: Request) -> None:
        is_bad = any("poison" in text for text in texts_of(request.body))
        (answer({"error": "rejected"}, 400) if is_bad else embeds(kind))(request)

    provider.then(embeds(former))
    with Memory.open(tmp_path / "a", embedder_settings=former) as memory:
        for number in range(20):
            memory.remember(f"poison {number}" if number % 5 == 0 else f"memory number {number}")
        assert memory.stats().without_vector == 0
    provider.then(rejects)
    with Memory.open(tmp_path / "a", embedder_settings=kind) as memory:
        with pytest.raises(ModelError, match="rejects 4 of 20 texts, so the former vectors stay"):
            memory.reembed()
        stats = memory.stats()
        assert (stats.waiting, stats.without_vector) == (4, 0)
        assert "old" in str(stats.model)
        provider.then(embeds(kind))
        assert memory.reembed() == 4
        assert memory.stats().waiting == 0
        assert "new" in str(memory.stats().model)


def test_opening_verifies_the_settings(provider: Provider) -> None:
    kind = msgspec.structs.replace(KINDS[1], url=provider.url, timeout_s=0.3)
    for fault, error, said in (
        (hang, ProviderUnavailableError, "no complete answer"),
        (answer({}, 401), ProviderError, r"\$\{OPENAI_API_KEY\}"),
        (answer({"error": {"code": "model_not_found"}}, 404), ProviderError, "model_not_found.*embedder.model"),
        (answer({}, 400), ProviderInputError, "other settings of"),
        (embeds(kind, ndim=8), ProviderError, "8 dimensions instead of 16; check embedder.dimensions"),
    ):
        provider.then(fault)
        with pytest.raises(error, match=said):
            open_embedder(kind)


def test_the_examples_of_the_reference_run(provider: Provider, tmp_path: Path) -> None:
    section = REFERENCE.read_text(encoding="utf-8").partition("\n## Other models\n")[2].partition("\n## ")[0]
    used = []
    for number, text in enumerate(re.findall(r"```toml\n(.*?)```", section, re.DOTALL)):
        file = tmp_path / f"{number}.toml"
        file.write_text(text, encoding="utf-8")
        settings = load_settings(file, environment={}).embedder
        if isinstance(settings, RemoteEmbedder):
            width = settings.dimensions or 8
            provider.then(embeds(settings, ndim=width))
            with opened(settings, provider) as embedder:
                assert embedder.embed_texts(["Staging needs the VPN"]).shape == (1, width)
            used.append(type_of(settings))
        else:
            assert settings.model in MODELS
    assert used == ["ollama", "openai", "gemini", "openai"]
