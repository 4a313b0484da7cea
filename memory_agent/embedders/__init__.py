"""Text to vectors: the protocol that the rest of the system sees, and the way to get an embedder in this process.

What it does not do: it holds no vectors and knows no store. An embedder names what its vectors come from
(`info.stamp`); the store keeps that beside them, so that vectors of two models are never compared. Importing this
module loads no engine: a process that embeds through another one (`remote`) stays small.

Rejected: a library that brings torch (2 GB), and one session per user (100 MB each). One per node, behind `server`.

Shapes: n texts, d = dimensions of an embedding (384 with the default model). All vectors are float32 of unit length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.config import EmbedderSettings
from memory_agent.errors import InvalidInputError
from memory_agent.records import Embedding

Embeddings = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]
"""Called with (done, total)."""
ByteProgress = Callable[[str, int, int], None]
"""Called with (file, bytes done, bytes in all)."""


class EmbedderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a vector comes from. `scheme` is int8 or float32; `runtime` names engine, kernel family, graph and cut."""

    model: str
    model_sha256: str
    scheme: str
    runtime: str
    ndim: int

    @property
    def stamp(self) -> str:
        """Text to store beside vectors: equal stamps mean vectors of the same bits for the same text."""
        return "|".join((self.model, self.model_sha256[:16], self.scheme, self.runtime, str(self.ndim)))


def comparable(stamp: str, other: str) -> bool:
    """Say whether cosines between vectors of the two stamps mean something: same weights, same dimensions.

    int8 and float32 vectors of one model are comparable (cosine .99 for the same text), those of two models are not.
    """
    return _weights_and_ndim(stamp) == _weights_and_ndim(other)


def _weights_and_ndim(stamp: str) -> tuple[str, ...]:
    parts = stamp.split("|")
    return (parts[1], parts[-1]) if len(parts) == 5 else (stamp,)


def check_text(field: str, text: object) -> None:
    """Raise `InvalidInputError`, naming `field`, unless `text` is a string that has a UTF-8 form."""
    if not isinstance(text, str):
        raise InvalidInputError(field, f"must be text, is {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, f"is not valid Unicode: lone surrogate at {error.start}") from error


@runtime_checkable
class Embedder(Protocol):
    """Turns text into vectors. Safe to call from several threads; the same text always gives the same bits.

    Text without words (empty, only spaces) has a vector too, and all such texts the same one. A text that is not valid
    Unicode (a lone surrogate) raises `InvalidInputError`. `ModelMissingError` and `EmbedderUnavailableError` say that
    there is no vector now and that trying again later may help.
    """

    @property
    def info(self) -> EmbedderInfo:
        """What the vectors come from."""
        ...

    def embed_query(self, text: str, timeout_s: float | None = None) -> Embedding:
        """Return the (d,) vector of `text`, ahead of all bulk work.

        Raises `EmbedderUnavailableError` after `timeout_s`.
        """
        ...

    def embed_texts(self, texts: Sequence[str], progress: Progress | None = None) -> Embeddings:
        """Return the (n, d) vectors of `texts`, at low priority. Either all are embedded or an error is raised."""
        ...

    def count_tokens(self, text: str, timeout_s: float | None = None) -> int:
        """Return how many tokens `text` has, the special ones left out and nothing cut off.

        Raises `EmbedderUnavailableError` after `timeout_s`, where it has to ask another process.
        """
        ...

    def close(self) -> None:
        """Stop; callers that wait get `EmbedderUnavailableError`."""
        ...


def open_embedder(settings: EmbedderSettings, *, cache: Path | None = None, package: str | None = None) -> Embedder:
    """Return an embedder in this process, with its two lanes.

    `cache` and `package` (the distribution that may carry the weights; "" for none) are found where not given.
    Raises `ModelMissingError`, `ModelChecksumError`, or `ModelError` for a model of another make.
    """
    from memory_agent.embedders.lanes import LanedEmbedder  # engines are loaded only by those that embed here
    from memory_agent.embedders.minilm import open_minilm
    from memory_agent.embedders.weights import PACKAGE, cache_folder

    model = open_minilm(settings, cache or cache_folder(), PACKAGE if package is None else package)
    return LanedEmbedder(model, bulk_niceness=settings.bulk_niceness, query_cache=settings.query_cache)
