"""Turn text into vectors: the `Embedder` protocol, with implementations that run in this process or call a server.

Read `protocol` first, then `minilm` (the model), `lanes` (queries before bulk work), `server` and `providers` (models
behind HTTP APIs). Importing this package loads neither onnxruntime nor sockets. Vectors are stored with the stamp of
their embedder (`info.stamp`), so vectors from different models are never compared.
"""

from memory_agent.embedders.lazy_embedder import LazyEmbedder, failing_as_model_error, open_embedder
from memory_agent.embedders.protocol import (
    Embedder,
    EmbedderInfo,
    Embeddings,
    PassageEmbedder,
    Pending,
    PendingVector,
    PendingVectors,
    Progress,
    Settled,
    SettledVector,
    comparable,
    comparable_words,
    has_prefixes,
    is_of_server,
)

__all__ = [
    "Embedder",
    "EmbedderInfo",
    "Embeddings",
    "LazyEmbedder",
    "PassageEmbedder",
    "Pending",
    "PendingVector",
    "PendingVectors",
    "Progress",
    "Settled",
    "SettledVector",
    "comparable",
    "comparable_words",
    "failing_as_model_error",
    "has_prefixes",
    "is_of_server",
    "open_embedder",
]
