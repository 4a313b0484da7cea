"""Runs the model in this process, one text at a time. The only file that imports `onnxruntime`.

One thread per run, no spinning (a spinning pool uses three quarters of a core), no arena (it never shrinks: 262 MB
instead of 74, measured). One text per run, never padded or batched: int8 scales are computed per run, so other texts in
a batch would change the bits. The engine's graph optimiser is off: the exporter has already fused the operators, and
upgrading the engine then changes no vector. Telemetry is off. Rejected: batches of equal length, 15 % faster at best,
but with different bits.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read on import; telemetry leaves a session file in TMPDIR
import onnxruntime

from memory_agent.embedders import EmbedderInfo, Embeddings
from memory_agent.embedders.cache import GRAPH_REVISION, Artifacts, obtain
from memory_agent.embedders.weights import WEIGHTS
from memory_agent.embedders.wordpiece import Ids, WordPiece
from memory_agent.errors import ModelError
from memory_agent.records import Embedding
from memory_agent.settings import EmbedderSettings

_ERRORS_ONLY = 3


def open_minilm(settings: EmbedderSettings, cache: Path, package: str) -> MiniLM:
    """Load the model of the settings. Raises the errors of `cache.obtain`."""
    return MiniLM(obtain(settings, cache, package), settings.max_tokens)


class MiniLM:
    """A loaded model. Thread-safe; each run uses the calling thread."""

    def __init__(self, artifacts: Artifacts, max_tokens: int) -> None:
        """Load the artifacts. Raises `ModelError` if the engine rejects the graph."""
        self._max_tokens = min(max_tokens, artifacts.model.shape.positions)
        self._wordpiece = WordPiece(artifacts.tokenizer, self._max_tokens)
        self._session = _open_session(artifacts.graph)
        self.info = EmbedderInfo(
            model=artifacts.model.shape.name,
            model_sha256=artifacts.model.sums[WEIGHTS],
            scheme=artifacts.scheme,
            runtime=f"onnxruntime-{onnxruntime.__version__}/{artifacts.kernels}/graph-{GRAPH_REVISION}/tokens-{self._max_tokens}",
            ndim=int(self._session.get_outputs()[0].shape[1]),
        )

    def embed(self, text: str) -> Embedding:
        """Return the (d,) vector of `text`. Raises `InvalidInputError`, `ModelError`."""
        ids = self.encode(text)
        vector: Embedding = self.embed_ids(ids, np.ones_like(ids))[0]
        return vector

    def encode(self, text: str) -> Ids:
        """Return the (1, t) ids of `text`, truncated, not padded. Raises `InvalidInputError`."""
        return self._wordpiece.encode(text)

    def embed_ids(self, ids: Ids, mask: Ids) -> Embeddings:
        """Return (n, d) vectors for (n, t) ids; the rows of a call share their int8 scales."""
        try:
            vectors: Embeddings = self._session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})[0]
        except Exception as error:  # the engine's errors have no common base class
            raise ModelError(f"the engine failed: {type(error).__name__}: {error}") from error
        return vectors

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of `text`, not truncated."""
        return self._wordpiece.count(text)


def _open_session(graph: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False  # it keeps one plan per shape, and shapes hardly repeat
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"the engine refuses the graph: {error}") from error
