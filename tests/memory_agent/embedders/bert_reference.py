"""BERT's forward pass in float64, implemented from the paper (Devlin et al. 2019), independently of the exporter.

Pooling and normalization are those of all-MiniLM-L6-v2. Also writes small random models of this architecture.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

Array = npt.NDArray[np.float64]

_ERF_AT = np.linspace(-6.0, 6.0, 100_001)
_ERF = np.array([math.erf(at) for at in _ERF_AT])


class Reference:
    """A BERT sentence encoder. `embed` takes the token ids of one text."""

    def __init__(self, weights: Path, heads: int, epsilon: float, pooling: str = "mean") -> None:
        self._weights = {name: tensor.astype(np.float64) for name, tensor in load_file(weights).items()}
        self._heads = heads
        self._epsilon = epsilon
        self._pooling = pooling
        self._layers = sum(name.endswith(".attention.self.query.weight") for name in self._weights)

    def embed(self, ids: npt.NDArray[np.int32]) -> Array:
        """Return the unit vector (d,) of the token ids (t,)."""
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = x + w["embeddings.token_type_embeddings.weight"][np.zeros(len(ids), dtype=int)]
        x = self._norm(x, "embeddings.LayerNorm")
        for layer in range(self._layers):
            x = self._layer(x, f"encoder.layer.{layer}")
        pooled = x.mean(axis=0) if self._pooling == "mean" else x[0]
        return pooled / np.linalg.norm(pooled)

    def _layer(self, x: Array, name: str) -> Array:
        attended = self._linear(self._attend(x, f"{name}.attention.self"), f"{name}.attention.output.dense")
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = self._linear(x, f"{name}.intermediate.dense")
        inner = 0.5 * inner * (1.0 + np.interp(inner / math.sqrt(2.0), _ERF_AT, _ERF))
        return self._norm(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _attend(self, x: Array, name: str) -> Array:
        query, key, value = (self._split(self._linear(x, f"{name}.{part}")) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = scores / scores.sum(axis=-1, keepdims=True) @ value
        return mixed.transpose(1, 0, 2).reshape(x.shape)

    def _split(self, x: Array) -> Array:
        return x.reshape(len(x), self._heads, -1).transpose(1, 0, 2)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._epsilon)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def write_random_model(folder: Path, tokenizer: Path, *, pooling: str, width: int = 64, layers: int = 2) -> None:
    """Write a folder with a random model of a different size, its checksums, and an existing vocabulary."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    save_file(_random_tensors(rng, width, layers), folder / "model.safetensors")
    config = {
        "model_type": "bert",
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    list_checksums(folder)


def list_checksums(folder: Path) -> None:
    """Write `SHA256SUMS` in the format of `sha256sum`."""
    names = ("model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json")
    present = [name for name in names if (folder / name).exists()]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in present]
    (folder / "SHA256SUMS").write_text("".join(lines))


def _random_tensors(rng: np.random.Generator, width: int, layers: int) -> dict[str, npt.NDArray[np.float32]]:
    tensors: dict[str, npt.NDArray[np.float32]] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        tensors[f"{name}.weight"] = rng.normal(0, 0.2, (outputs, inputs)).astype(np.float32)
        tensors[f"{name}.bias"] = rng.normal(0, 0.1, outputs).astype(np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = rng.normal(1, 0.1, width).astype(np.float32)
        tensors[f"{name}.bias"] = rng.normal(0, 0.1, width).astype(np.float32)

    for table, rows in (("word", 30522), ("position", 128), ("token_type", 2)):
        tensors[f"embeddings.{table}_embeddings.weight"] = rng.normal(0, 1, (rows, width)).astype(np.float32)
    norm("embeddings.LayerNorm")
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{name}.attention.{part}", width, width)
        norm(f"{name}.attention.output.LayerNorm")
        linear(f"{name}.intermediate.dense", width, 4 * width)
        linear(f"{name}.output.dense", 4 * width, width)
        norm(f"{name}.output.LayerNorm")
    return tensors
