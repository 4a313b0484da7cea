"""Run the model in this process, one text at a time. This is the only file that imports `onnxruntime`.

A run uses one thread, without spinning and without an arena (an arena never shrinks; measured: 262 MB with one, 74 MB
without). Each run embeds one passage, without padding or batching: int8 scales are computed per run, so other texts in
a batch would change the vector's bits. The engine's graph optimiser is off, so an upgrade of the engine does not change
the vectors; the exporter has already fused the operators. Telemetry is off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import; telemetry leaves a session file in TMPDIR
import onnxruntime

from memory_agent.embedders import passages
from memory_agent.embedders.cache import GRAPH_REVISION, Artifacts, obtain
from memory_agent.embedders.protocol import EmbedderInfo, Embeddings
from memory_agent.embedders.weights import WEIGHTS, digest_of_prefixes, prefixes_of
from memory_agent.embedders.wordpiece import CHARS_PER_TOKEN, Ids, Tokens, WordPiece
from memory_agent.errors import ModelError
from memory_agent.records.embedded import Embedded, EmbeddedQuery, Embedding
from memory_agent.settings import EmbedderSettings

_ERRORS_ONLY = 3
_LEAST_ROOM = 4


def open_minilm(settings: EmbedderSettings, cache: Path, package: str) -> MiniLM:
    """Load the model that the settings name. Raises the same errors as `cache.obtain`."""
    artifacts = obtain(settings, cache, package)
    prefixes = prefixes_of(artifacts.model.shape.name, settings)
    return MiniLM(artifacts, settings.max_tokens, *prefixes)


class MiniLM:
    """A loaded model. Thread-safe; each run uses the calling thread."""

    def __init__(self, artifacts: Artifacts, max_tokens: int, query_prefix: str = "", passage_prefix: str = "") -> None:
        """Load the artifacts; `max_tokens` limits one run, including its prefix and special tokens.

        Raises `ModelError` if the engine rejects the graph, or if a prefix leaves too little room.
        """
        self._max_tokens = min(max_tokens, artifacts.model.shape.positions)
        self._wordpiece = WordPiece(artifacts.tokenizer, self._max_tokens, passages.MOST_PASSAGES)
        self._query_chars = self._max_tokens * CHARS_PER_TOKEN
        self._query_prefix = self._prefix("embedder.query_prefix", query_prefix)
        self._passage_prefix = self._prefix("embedder.passage_prefix", passage_prefix)
        self._session = _open_session(artifacts.graph)
        self.info = EmbedderInfo(
            model=artifacts.model.shape.name,
            model_sha256=artifacts.model.sums[WEIGHTS],
            scheme=artifacts.scheme,
            runtime=f"onnxruntime-{onnxruntime.__version__}/{artifacts.kernels}/graph-{GRAPH_REVISION}/tokens-{self._max_tokens}",
            ndim=int(self._session.get_outputs()[0].shape[1]),
            words=passages.WORDS_REVISION,
            prefixes=digest_of_prefixes(query_prefix, passage_prefix),
        )

    def embed(self, text: str) -> Embedding:
        """Return the (d,) vector of the start of `text`, without a prefix. Raises `InvalidInputError`."""
        ids = self.encode(text)
        vector: Embedding = self.embed_ids(ids, np.ones_like(ids))[0]
        return vector

    def embed_query(self, text: str) -> EmbeddedQuery:
        """Return the vectors of a query and its words. Raises `InvalidInputError` and `ModelError`."""
        tokens = self._wordpiece.read(text[: self._query_chars])
        ids = tokens.ids[: min(tokens.first, self._room(self._query_prefix))]
        vector, states = self._run(self._query_prefix, ids)
        words = passages.query_words_of(text[: self._query_chars], tokens, len(ids))
        sums = np.zeros((len(words.names), len(vector)), np.float32)
        passages.add_words(words, states, sums)
        read = self._wordpiece.share_read(text, tokens, len(ids))
        return EmbeddedQuery(_read_only(vector), words.names, _read_only(passages.query_vectors(sums)), read)

    def begin_text(self, text: str) -> Reading:
        """Return a `Reading` of the text; each of its steps runs the model on one passage."""
        return Reading(self, text)

    def read(self, text: str) -> tuple[Tokens, passages.Ints]:
        """Return the tokens of a text, and the (p, 2) bounds of its passages as token positions [start, end)."""
        tokens = self._wordpiece.read(text)
        return tokens, passages.cut(tokens, self._room(self._passage_prefix))

    def embed_passage(self, ids: Ids) -> tuple[Embedding, passages.Array]:
        """Return the (d,) vector and the (t, d) token vectors for (t,) token ids."""
        return self._run(self._passage_prefix, ids)

    def encode(self, text: str) -> Ids:
        """Return the (1, t) ids of `text`, truncated but not padded. Raises `InvalidInputError`."""
        return self._wordpiece.encode(text)

    def embed_ids(self, ids: Ids, mask: Ids) -> Embeddings:
        """Return (n, d) vectors for (n, t) ids; the rows of a call share their int8 scales."""
        return self._outputs(["embedding"], ids, mask)[0]

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of `text`, without truncation."""
        return self._wordpiece.count(text)

    def _run(self, prefix: Ids, ids: Ids) -> tuple[Embedding, passages.Array]:
        framed = self._wordpiece.framed(np.concatenate((prefix, ids)) if len(prefix) else ids)
        vectors, states = self._outputs(["embedding", "token_vectors"], framed, np.ones_like(framed))
        return vectors[0], states[0, 1 + len(prefix) : -1]

    def _outputs(self, names: list[str], ids: Ids, mask: Ids) -> list[passages.Array]:
        try:
            arrays: list[passages.Array] = self._session.run(names, {"input_ids": ids, "attention_mask": mask})
        except Exception as error:  # the engine's errors have no common base class
            raise ModelError(f"the engine failed: {type(error).__name__}: {error}") from error
        return arrays

    def _prefix(self, setting: str, prefix: str) -> Ids:
        ids = self._wordpiece.read(prefix).ids
        if self._room(ids) < _LEAST_ROOM:
            raise ModelError(f"{setting} has {len(ids)} tokens, which leaves too little room in {self._max_tokens}")
        return ids

    def _room(self, prefix: Ids) -> int:
        return self._max_tokens - 2 - len(prefix)


class Reading:
    """A text that is being embedded passage by passage. Used by one thread at a time."""

    def __init__(self, model: MiniLM, text: str) -> None:
        self._model = model
        self._text = text
        self._vectors: list[Embedding] = []

    def step(self) -> Embedded | None:
        """Embed the next passage; return the result after the last one. Raises `InvalidInputError` and `ModelError`."""
        if not self._vectors:
            self._tokens, self._passages = self._model.read(self._text)
            self._words = passages.text_words_of(self._text, self._tokens, int(self._passages[-1, 1]))
            self._sums = np.zeros((len(self._words.names), self._model.info.ndim), np.float32)
        begin, end = self._passages[len(self._vectors)].tolist()
        vector, states = self._model.embed_passage(self._tokens.ids[begin:end])
        here, self._words = self._words.divided(begin, end)
        passages.add_words(here, states, self._sums)
        self._vectors.append(vector)
        if len(self._vectors) < len(self._passages):
            return None
        return Embedded(
            _read_only(np.array(self._vectors)),
            _read_only(passages.spans_of(self._passages, self._tokens, len(self._text))),
            _read_only(passages.signs(self._sums)),
            len(self._tokens.ids),
        )


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _open_session(graph: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False  # the engine keeps one plan per shape, and shapes rarely repeat
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"the engine rejected the graph: {error}") from error
