"""Embed with a model behind a server's HTTP API: Ollama, OpenAI (and compatible servers), and Gemini.

Vectors are checked before use: there must be one per text, and all must be finite, nonzero and of the same width. A
text of more than `passage_chars` characters gets several vectors. If the server rejects a text as too long, the text's
vector is the mean of the vectors of its halves. When an embedder is opened, it embeds one word to verify the address,
key, model and dimensions.

Shapes: n texts, p passages of a text, d dimensions.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np

from memory_agent.embedders.lanes import ResultCache
from memory_agent.embedders.passages import MOST_PASSAGES
from memory_agent.embedders.protocol import (
    SERVER_RUNTIME,
    EmbedderInfo,
    Embeddings,
    Later,
    PassageEmbedder,
    Pending,
    Progress,
    all_of,
)
from memory_agent.embedders.weights import digest_of_prefixes, prefixes_of
from memory_agent.errors import ProviderError, ProviderInputError, ProviderUnavailableError, SettingsError
from memory_agent.model_apis import ModelEndpoint, open_api
from memory_agent.records.arguments import check_text
from memory_agent.records.embedded import Embedded, EmbeddedQuery, Embedding, query_of_vector, word_bytes
from memory_agent.records.memories import ApiCounts
from memory_agent.settings import GeminiEmbedder, OllamaEmbedder, OpenAIEmbedder, RemoteEmbedder
from relay.future import Future

if TYPE_CHECKING:
    from memory_agent.model_apis.api import ModelApi

_PASSAGES_REVISION = "chars1"
_OVERLAP_CHARS = 100
_BATCH_CHARS = 200_000  # OpenAI accepts 300,000 tokens per request; a character is at most about 1.5 tokens
_BYTES_PER_NUMBER = 25  # of JSON
_BULK_AT_ONCE = 2
_TEXT_CACHE = 1024
_LEAST_CHARS = 200  # a shorter text is not halved if the server rejects it as too long
_PROBE = "memory"
_PROBE_S = 10.0
_BLANK = "."  # some servers reject blank texts

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Format(Generic[Answer]):
    """The API of one kind of server: the path, the request body, and how to read vectors and token counts from a
    response."""

    path: Callable[[RemoteEmbedder], str]
    body: Callable[[RemoteEmbedder, Sequence[str], bool], Mapping[str, Any]]
    answer: type[Answer]
    read: Callable[[Answer], tuple[list[list[float]], int | None]]
    key_header: str = "Authorization"
    key_scheme: str = "Bearer "


class _OllamaAnswer(msgspec.Struct, frozen=True):
    embeddings: list[list[float]]
    prompt_eval_count: int | None = None


class _OpenAIVector(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float]


class _OpenAIUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None


class _OpenAIAnswer(msgspec.Struct, frozen=True):
    data: list[_OpenAIVector]
    usage: _OpenAIUsage | None = None


class _GeminiVector(msgspec.Struct, frozen=True):
    values: list[float]


class _GeminiAnswer(msgspec.Struct, frozen=True):
    embeddings: list[_GeminiVector]


def _ollama_body(settings: RemoteEmbedder, texts: Sequence[str], _is_query: bool) -> Mapping[str, Any]:
    return {"model": settings.model, "input": texts, "truncate": False, **_wanted("dimensions", settings)}


def _openai_body(settings: RemoteEmbedder, texts: Sequence[str], _is_query: bool) -> Mapping[str, Any]:
    return {"model": settings.model, "input": texts, "encoding_format": "float", **_wanted("dimensions", settings)}


def _gemini_body(settings: RemoteEmbedder, texts: Sequence[str], is_query: bool) -> Mapping[str, Any]:
    shared = {
        "model": f"models/{settings.model}",
        "taskType": "RETRIEVAL_QUERY" if is_query else "RETRIEVAL_DOCUMENT",
        **_wanted("outputDimensionality", settings),
    }
    return {"requests": [{**shared, "content": {"parts": [{"text": text}]}} for text in texts]}


def _wanted(name: str, settings: RemoteEmbedder) -> dict[str, int]:
    return {name: settings.dimensions} if settings.dimensions else {}


def _read_openai(answer: _OpenAIAnswer) -> tuple[list[list[float]], int | None]:
    ordered = sorted(answer.data, key=lambda one: one.index)
    is_whole = [one.index for one in ordered] == list(range(len(ordered)))
    tokens = None if answer.usage is None else answer.usage.prompt_tokens
    return [one.embedding for one in ordered] if is_whole else [], tokens


FORMATS: dict[type[RemoteEmbedder], Format[Any]] = {
    OllamaEmbedder: Format(
        path=lambda _: "/api/embed",
        body=_ollama_body,
        answer=_OllamaAnswer,
        read=lambda answer: (answer.embeddings, answer.prompt_eval_count),
    ),
    OpenAIEmbedder: Format(path=lambda _: "/embeddings", body=_openai_body, answer=_OpenAIAnswer, read=_read_openai),
    GeminiEmbedder: Format(
        path=lambda settings: f"/models/{settings.model}:batchEmbedContents",
        body=_gemini_body,
        answer=_GeminiAnswer,
        read=lambda answer: ([one.values for one in answer.embeddings], None),
        key_header="x-goog-api-key",
        key_scheme="",
    ),
}


def type_of(settings: RemoteEmbedder) -> str:
    return str(type(settings).__struct_config__.tag)


def open_provider(settings: RemoteEmbedder) -> ProviderEmbedder:
    """Open an embedder, and verify the settings by embedding one word; the caller closes it.

    Raises `SettingsError`, `ProviderUnavailableError` and `ProviderError`.
    """
    form = FORMATS[type(settings)]
    endpoint = ModelEndpoint(
        setting="embedder",
        provider=type_of(settings),
        url=settings.url,
        key=settings.api_key,
        key_header=form.key_header,
        key_scheme=form.key_scheme,
        timeout_s=settings.timeout_s,
        usd_per_million_tokens=settings.usd_per_million_tokens,
    )
    if not settings.model.isprintable() or any(mark in settings.model for mark in "|?#"):
        raise SettingsError("embedder.model", "is not the name of a model")
    api = open_api(endpoint)
    try:
        return ProviderEmbedder(settings, api, form)
    except BaseException:
        api.close()
        raise


class ProviderEmbedder(PassageEmbedder):
    """An `Embedder` over a server's API. Thread-safe. Equal texts are sent once: calls in progress are shared."""

    def __init__(self, settings: RemoteEmbedder, api: ModelApi, form: Format[Any]) -> None:
        """Embed one word to determine the dimensions. Raises the same errors as `open_provider`."""
        self._settings = settings
        self._api = api
        self._form = form
        self._bulk = asyncio.Semaphore(_BULK_AT_ONCE)
        self._known = {True: ResultCache(settings.query_cache), False: ResultCache(_TEXT_CACHE)}
        self._running: dict[bytes, asyncio.Task[dict[bytes, Embedding]]] = {}
        self._prefixes = prefixes_of(settings.model, settings)
        self._ndim = 0
        self._ndim = len(api.run(lambda: self._ask([_PROBE], True, min(_PROBE_S, settings.timeout_s))).result()[0])
        if settings.dimensions not in (0, self._ndim):
            raise self._unusable(f"{self._ndim} dimensions instead of {settings.dimensions}", "embedder.dimensions")
        name = f"{type_of(settings)}/{settings.model}"
        self._info = EmbedderInfo(
            model=name,
            model_sha256=hashlib.sha256(name.encode()).hexdigest(),
            scheme="float32",
            runtime=f"{SERVER_RUNTIME}/chars-{settings.passage_chars}",
            ndim=self._ndim,
            words=_PASSAGES_REVISION,
            prefixes=digest_of_prefixes(*self._prefixes),
        )

    @property
    def info(self) -> EmbedderInfo:
        return self._info

    def begin_query_words(self, text: str, timeout_s: float | None = None) -> Pending[EmbeddedQuery]:
        return self.submit_query(text, timeout_s)

    def begin_passages(
        self, texts: Sequence[str], progress: Progress | None = None, timeout_s: float | None = None
    ) -> Pending[list[Embedded]]:
        """Send texts in batches or, with `timeout_s`, one by one ahead of bulk work. Raises the protocol's errors."""
        if timeout_s is not None:
            return all_of([self.submit_awaited_text(text, timeout_s) for text in texts])
        sent = self.submit_texts(texts)
        return sent if progress is None else Later(lambda: _report(sent.result(), progress))

    def submit_query(self, text: str, timeout_s: float | None = None) -> Future[EmbeddedQuery]:
        """Send a query and return its future, which fails with the errors of the protocol and `ProviderError`."""
        check_text("text", text)
        text = text[: self._settings.passage_chars]

        async def query() -> EmbeddedQuery:
            (vector,) = await self._within(timeout_s, self._vectors([text], True, timeout_s))
            return query_of_vector(vector)

        return self._api.run(query)

    def submit_awaited_text(self, text: str, timeout_s: float) -> Future[Embedded]:
        """Send a text for which a caller waits, in the same way as a query."""
        check_text("text", text)

        async def awaited() -> Embedded:
            (found,) = await self._within(timeout_s, self._texts([text], timeout_s))
            return found

        return self._api.run(awaited)

    def submit_texts(self, texts: Sequence[str]) -> Future[list[Embedded]]:
        """Send texts in batches, two at a time. The future fails if any text fails."""
        for position, text in enumerate(texts):
            check_text(f"texts[{position}]", text)
        return self._api.run(lambda: self._texts(texts, None))

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return an estimate, because servers do not count tokens. It is an upper bound for most texts."""
        others = sum(not char.isascii() for char in text)
        return -(-(len(text) - others) // 2) + 2 * others

    def provider_calls(self, timeout_s: float | None = None) -> ApiCounts:
        return self._api.counts()

    def close(self) -> None:
        """Cancel the calls in progress; their callers get `ProviderUnavailableError`. Idempotent."""
        self._api.close()

    async def _within(self, timeout_s: float | None, work: Awaitable[Answer]) -> Answer:
        """Wait for a call, which another caller may have started. Raises `ProviderUnavailableError`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            raise ProviderUnavailableError(type_of(self._settings), f"no vector within {timeout_s:.3g} s") from None

    async def _texts(self, texts: Sequence[str], timeout_s: float | None) -> list[Embedded]:
        spans = [_cut(text, self._settings.passage_chars) for text in texts]
        pieces = [text[start:end] for text, parts in zip(texts, spans, strict=True) for start, end in parts]
        vectors = iter(await self._vectors(pieces, False, timeout_s))
        return [
            Embedded(
                np.stack([next(vectors) for _ in parts]),
                np.array(parts, np.int32),
                np.zeros((0, word_bytes(self._ndim)), np.uint8),
                self.count_tokens(text),
            )
            for text, parts in zip(texts, spans, strict=True)
        ]

    async def _vectors(self, texts: Sequence[str], is_query: bool, timeout_s: float | None) -> list[Embedding]:
        """Return the vectors from the cache, from calls in progress, or from new calls."""
        prefix = self._prefixes[0 if is_query else 1]
        wanted = {_digest(text, is_query): prefix + (text if text.strip() else _BLANK) for text in texts}
        found: dict[bytes, Embedding] = {}
        for key in wanted:
            if (known := self._known[is_query].get(key)) is not None:
                found[key] = known.vector  # type: ignore[union-attr]  # these caches contain only queries
        new = {key: text for key, text in wanted.items() if key not in found and key not in self._running}
        for batch in self._batches(new):
            self._begin(batch, is_query, timeout_s)
        waiting = {key: self._running[key] for key in wanted if key not in found}
        for key, task in waiting.items():
            found[key] = (await asyncio.shield(task))[key]  # other callers may wait for the same call
        return [found[_digest(text, is_query)] for text in texts]

    def _begin(self, texts: Mapping[bytes, str], is_query: bool, timeout_s: float | None) -> None:
        """Send a batch in a separate task, which caches the vectors."""
        task = asyncio.create_task(self._batch(texts, is_query, timeout_s))
        self._running |= dict.fromkeys(texts, task)

        def end(ended: asyncio.Task[dict[bytes, Embedding]]) -> None:
            for key in texts:
                del self._running[key]
            if not ended.cancelled() and ended.exception() is None:
                for key, vector in ended.result().items():
                    self._known[is_query].put(key, query_of_vector(vector))

        task.add_done_callback(end)

    async def _batch(
        self, texts: Mapping[bytes, str], is_query: bool, timeout_s: float | None
    ) -> dict[bytes, Embedding]:
        async with self._bulk if timeout_s is None else nullcontext():
            vectors = await self._ask(list(texts.values()), is_query, timeout_s)
        return dict(zip(texts, vectors, strict=True))

    async def _ask(self, texts: Sequence[str], is_query: bool, timeout_s: float | None) -> list[Embedding]:
        """Send one request. If a single text is rejected, send its halves instead."""
        body = self._form.body(self._settings, texts, is_query)
        try:
            answer = await self._api.ask(self._form.path(self._settings), body, self._form.answer, timeout_s)
        except ProviderInputError:
            if len(texts) > 1 or len(texts[0]) < _LEAST_CHARS or not self._ndim:
                raise
            half = len(texts[0]) // 2
            halves = [await self._ask([part], is_query, timeout_s) for part in (texts[0][:half], texts[0][half:])]
            return [_unit(halves[0][0] + halves[1][0])]
        vectors, tokens = self._form.read(answer)
        self._api.add_tokens(-(-sum(map(len, texts)) // 4) if tokens is None else tokens)
        return self._checked(vectors, len(texts))

    def _checked(self, vectors: list[list[float]], count: int) -> list[Embedding]:
        if len(vectors) != count:
            raise self._unusable(f"{len(vectors)} vectors for {count} texts", "embedder.url")
        widths = {len(vector) for vector in vectors}
        if len(widths) != 1 or 0 in widths or (self._ndim and widths != {self._ndim}):
            shown = ", ".join(map(str, sorted(widths)))
            raise self._unusable(f"vectors of {shown} dimensions instead of {self._ndim or 'one'}", "embedder.model")
        with np.errstate(over="ignore"):
            found: Embeddings = np.array(vectors, np.float64).astype(np.float32)
        lengths = np.linalg.norm(found, axis=1)
        if not (np.isfinite(lengths).all() and lengths.all()):
            raise self._unusable("vectors that are not finite or are zero", "embedder.model")
        return [_unit(vector) for vector in found]

    def _unusable(self, what: str, setting: str) -> ProviderError:
        return ProviderError(type_of(self._settings), f"returned {what}; check {setting}")

    def _batches(self, texts: Mapping[bytes, str]) -> Iterator[dict[bytes, str]]:
        """Divide texts into batches with limited numbers of texts and characters and a limited response size."""
        most = max(1, min(self._settings.batch, self._api.endpoint.answer_bytes // (_BYTES_PER_NUMBER * self._ndim)))
        batch, chars = dict[bytes, str](), 0
        for key, text in texts.items():
            if batch and (len(batch) == most or chars + len(text) > _BATCH_CHARS):
                yield batch
                batch, chars = {}, 0
            batch[key] = text
            chars += len(text)
        if batch:
            yield batch


def _cut(text: str, most: int) -> list[tuple[int, int]]:
    """Return the spans of at most 16 overlapping passages of at most `most` characters, which end at word boundaries.

    >>> _cut("one two three", 200)
    [(0, 13)]
    """
    spans, start = [(0, min(most, len(text)))], 0
    while spans[-1][1] < len(text):
        begin, end = spans[-1]
        space = text.rfind(" ", begin + most // 2, end)
        end = end if space < 0 else space + 1
        spans[-1] = (begin, end)
        if len(spans) == MOST_PASSAGES:
            break
        start = max(end - _OVERLAP_CHARS, begin + 1)
        word = text.find(" ", start, end)
        start = start if word < 0 else word + 1
        spans.append((start, min(start + most, len(text))))
    return spans


def _unit(vector: Embedding) -> Embedding:
    unit: Embedding = (vector / np.linalg.norm(vector.astype(np.float64))).astype(np.float32)
    unit.flags.writeable = False
    return unit


def _digest(text: str, is_query: bool) -> bytes:
    content = text if text.strip() else ""
    return hashlib.blake2b(content.encode(), digest_size=16, person=b"query" if is_query else b"text").digest()


def _report(found: list[Embedded], progress: Progress) -> list[Embedded]:
    if found:
        progress(len(found), len(found))
    return found
