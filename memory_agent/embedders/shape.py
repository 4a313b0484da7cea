"""What the weights of a model alone do not say, and how it is read from the model's folder.

Known make: a BERT encoder with absolute places and the exact GELU, pooled by mean or by its first token, which covers
MiniLM, BGE, GTE and E5 of the first generation. Anything else is refused by name: a wrong guess would embed nonsense.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from memory_agent.errors import ModelError

T = TypeVar("T")


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """`pooling` is mean or cls; `positions` bounds the tokens of a text."""

    name: str
    layers: int
    heads: int
    epsilon: float
    positions: int
    pooling: str = "mean"


class _Config(msgspec.Struct, frozen=True):
    """The part of `config.json` that matters here; the rest of the file is not looked at."""

    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    model_type: str
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str = "absolute"


class _Pooling(msgspec.Struct, frozen=True):
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False


def read_shape(folder: Path, pooling_listed: bool) -> ModelShape:
    """Return the shape that `config.json` and, if listed, `1_Pooling/config.json` describe.

    Raises `ModelError` for another make.
    """
    config = _decode(folder / "config.json", _Config)
    make = (config.model_type, config.hidden_act, config.position_embedding_type)
    if make != ("bert", "gelu", "absolute"):
        raise ModelError(f"{folder}: model of make {'/'.join(make)}, known is bert/gelu/absolute")
    return ModelShape(
        name=folder.resolve().name,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        positions=config.max_position_embeddings,
        pooling=_read_pooling(folder) if pooling_listed else "mean",
    )


def _read_pooling(folder: Path) -> str:
    modes = _decode(folder / "1_Pooling" / "config.json", _Pooling)
    if modes.pooling_mode_cls_token == modes.pooling_mode_mean_tokens:
        raise ModelError(f"{folder}: pooling must be either by mean or by the first token")
    return "cls" if modes.pooling_mode_cls_token else "mean"


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path}: {error}") from error
