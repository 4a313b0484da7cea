"""The model in this process: one text in, one vector out. The only file that imports `onnxruntime`.

One thread a run, no spinning, no arena: an arena never shrinks (262 MB instead of 74, measured), a spinning pool burns
three quarters of a core. One text a run, never padded and never batched: int8 scales are taken per run, so a neighbour
would change the bits. The engine's own rewriting of the graph is off: the exporter has fused what is worth it, and an
upgrade of the optimiser changes no vector. The engine's telemetry is off. What this file does not do: no lanes, no
cache, no files.

Rejected: batches of equal length, 15 % faster at best and not the same bits.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at import, which else leaves a session file in TMPDIR
import onnxruntime

from memory_agent.config import EmbedderSettings
from memory_agent.embedders import EmbedderInfo, Embeddings
from memory_agent.embedders.cache import GRAPH_REVISION, Artifacts, obtain
from memory_agent.embedders.weights import WEIGHTS
from memory_agent.embedders.wordpiece import Ids, WordPiece
from memory_agent.errors import ModelError
from memory_agent.records import Embedding

_ERRORS_ONLY = 3


def open_minilm(settings: EmbedderSettings, cache: Path, package: str) -> MiniLM:
    """Load the model that the settings name. Raises as `cache.obtain` does."""
    return MiniLM(obtain(settings, cache, package), settings.max_tokens)


class MiniLM:
    """A loaded model. Safe to use from several threads at once; each run takes one of them."""

    def __init__(self, artifacts: Artifacts, max_tokens: int) -> None:
        """Raises `ModelError` where the engine refuses the graph."""
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
        """Return the (1, t) ids of `text`, cut and not padded. Raises `InvalidInputError`."""
        return self._wordpiece.encode(text)

    def embed_ids(self, ids: Ids, mask: Ids) -> Embeddings:
        """Return (n, d) vectors for (n, t) ids; rows of one call share their int8 scales."""
        try:
            vectors: Embeddings = self._session.run(["embedding"], {"input_ids": ids, "attention_mask": mask})[0]
        except Exception as error:  # the engine's have no common root
            raise ModelError(f"the engine failed: {type(error).__name__}: {error}") from error
        return vectors

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of `text`, uncut."""
        return self._wordpiece.count(text)


def _open_session(graph: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False  # a plan per shape, for shapes that hardly repeat
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"the engine refuses the graph: {error}") from error
