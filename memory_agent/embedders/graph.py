"""Export BERT weights to one ONNX graph that includes pooling and norm, in float32 or per-channel int8.

Inputs: `input_ids` and `attention_mask`, both int32 (n, t). Outputs: `embedding`, float32 (n, d), of unit length, and
`token_vectors`, float32 (n, t, d), the last layer. In int8, there is one signed scale per output column of each matrix
and per row of the word table; the engine quantises activations per run. Decision 0011 explains the choice of operators.

Shapes: n texts, t tokens, d width, f inner width, v vocabulary, k inputs and m outputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from memory_agent.embedders import onnx_file
from memory_agent.embedders.schemes import Scheme
from memory_agent.embedders.weights import ModelShape
from memory_agent.errors import ModelError

_OPSET = 17
_IR_VERSION = 9
_FUSED = "com.microsoft"
_LEAST_SIZE = 0.2

Array = npt.NDArray[np.float32]
Constant = npt.NDArray[np.generic]


def export_graph(weights: Path, shape: ModelShape, scheme: Scheme) -> bytes:
    """Return the graph of the model in `weights` as an ONNX file. Raises `ModelError` for a different architecture."""
    try:
        tensors = load_file(weights)
        nodes = _Encoder(_named(tensors), shape, _Int8() if scheme == "int8" else _Float32()).build()
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ModelError(f"{weights}: not a BERT encoder with {shape.layers} layers: {error}") from error
    return _serialize(nodes, shape.name)


def _named(tensors: dict[str, npt.NDArray[np.generic]]) -> dict[str, Array]:
    """Return the float tensors by their BERT names, without the prefix `bert.` of some files."""
    return {
        name.removeprefix("bert."): np.asarray(tensor, dtype=np.float32)
        for name, tensor in tensors.items()
        if np.issubdtype(tensor.dtype, np.floating)
    }


def quantise_columns(matrix: Array) -> tuple[npt.NDArray[np.int8], Array]:
    """Quantise a matrix to (k, m) int8 with (m,) scales; the error of each entry is at most half a step."""
    scales = np.maximum(np.abs(matrix).max(axis=0), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)


class _Nodes:
    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.constants: dict[str, Constant] = {}

    def constant(self, name: str, value: Constant) -> str:
        self.constants[name] = value
        return name

    def add(
        self, operator: str, inputs: list[str], *outputs: str, domain: str = "", **attributes: onnx_file.Attribute
    ) -> str:
        self.nodes.append(onnx_file.node(operator, inputs, outputs, domain, **attributes))
        return outputs[0]

    def fused(self, operator: str, inputs: list[str], output: str, **attributes: onnx_file.Attribute) -> str:
        return self.add(operator, inputs, output, domain=_FUSED, **attributes)


_Linear = Callable[[_Nodes, str, Array, Array, str], str]


class _Float32:
    def words(self, g: _Nodes, table: Array) -> str:
        return g.add("Gather", [g.constant("words", table), "input_ids"], "word_rows")

    def linear(self, g: _Nodes, x: str, matrix: Array, bias: Array, name: str) -> str:
        product = g.add("MatMul", [x, g.constant(f"{name}.w", matrix)], f"{name}.product")
        return g.add("Add", [product, g.constant(f"{name}.b", bias)], f"{name}.out")

    def grow(self, g: _Nodes, x: str, matrix: Array, bias: Array, name: str) -> str:
        product = g.add("MatMul", [x, g.constant(f"{name}.w", matrix)], f"{name}.product")
        return g.fused("BiasGelu", [product, g.constant(f"{name}.b", bias)], f"{name}.out")

    shrink = linear

    def attention(self, g: _Nodes, x: str, matrix: Array, bias: Array, name: str, heads: int) -> str:
        inputs = [x, g.constant(f"{name}.w", matrix), g.constant(f"{name}.b", bias), "lengths"]
        return g.fused("Attention", inputs, f"{name}.out", num_heads=heads)


class _Int8:
    """The operators with int8 weights.

    The engine quantises the left operand of a product with one scale for all tokens, but one channel of the first token
    is ten times larger than the rest. So, in the two products of the inner layer, each token is first divided by its
    largest entry, and the product is then multiplied by that entry.
    """

    def words(self, g: _Nodes, table: Array) -> str:
        rows, scales = quantise_columns(table.T)
        picked = g.add("Gather", [g.constant("words", rows.T), "input_ids"], "word_bytes")
        wide = g.add("Cast", [picked], "word_floats", to=onnx_file.FLOAT)
        scale = g.add("Gather", [g.constant("word_scales", scales[:, None]), "input_ids"], "row_scales")
        return g.add("Mul", [wide, scale], "word_rows")

    def linear(self, g: _Nodes, x: str, matrix: Array, bias: Array, name: str) -> str:
        inputs = [x, *self._matrix(g, matrix, name), g.constant(f"{name}.b", bias)]
        return g.fused("DynamicQuantizeMatMul", inputs, f"{name}.out")

    def grow(self, g: _Nodes, x: str, matrix: Array, bias: Array, name: str) -> str:
        product = self._token_by_token(g, x, g.add("Abs", [x], f"{name}.abs"), matrix, name)
        return g.fused("BiasGelu", [product, g.constant(f"{name}.b", bias)], f"{name}.out")

    def shrink(self, g: _Nodes, x: str, matrix: Array, bias: Array, name: str) -> str:
        # GELU is never below -0.17, so the largest entry also has the largest magnitude, unless the floor exceeds it.
        product = self._token_by_token(g, x, x, matrix, name)
        return g.add("Add", [product, g.constant(f"{name}.b", bias)], f"{name}.out")

    def attention(self, g: _Nodes, x: str, matrix: Array, bias: Array, name: str, heads: int) -> str:
        weights, scales, zeros = self._matrix(g, matrix, name)
        quantised = [f"{name}.x", f"{name}.x_scale", f"{name}.x_zero"]
        g.add("DynamicQuantizeLinear", [x], *quantised)
        inputs = [quantised[0], weights, g.constant(f"{name}.b", bias), quantised[1], scales, "lengths"]
        return g.fused("QAttention", [*inputs, quantised[2], zeros], f"{name}.out", num_heads=heads)

    def _token_by_token(self, g: _Nodes, x: str, sizes: str, matrix: Array, name: str) -> str:
        floor = g.constant(f"{name}.floor", np.array(_LEAST_SIZE, dtype=np.float32))
        largest = g.add("ReduceMax", [sizes], f"{name}.largest", axes=[-1], keepdims=1)
        size = g.add("Max", [largest, floor], f"{name}.size")
        even = g.add("Div", [x, size], f"{name}.even")
        product = g.fused("DynamicQuantizeMatMul", [even, *self._matrix(g, matrix, name)], f"{name}.product")
        return g.add("Mul", [product, size], f"{name}.sized")

    def _matrix(self, g: _Nodes, matrix: Array, name: str) -> tuple[str, str, str]:
        values, scales = quantise_columns(matrix)
        zeros = np.zeros(len(scales), dtype=np.int8)
        return (
            g.constant(f"{name}.w", values),
            g.constant(f"{name}.scale", scales),
            g.constant(f"{name}.zero", zeros),
        )


class _Encoder:
    def __init__(self, tensors: dict[str, Array], shape: ModelShape, kind: _Float32 | _Int8) -> None:
        self._tensors = tensors
        self._shape = shape
        self._kind = kind
        self._g = _Nodes()

    def build(self) -> _Nodes:
        g = self._g
        g.constant("token_axis", np.array([1], dtype=np.int64))
        g.add("ReduceSum", ["attention_mask", "token_axis"], "lengths", keepdims=0)
        x = self._embed()
        for layer in range(self._shape.layers):
            x = self._layer(x, f"encoder.layer.{layer}")
        g.add("Identity", [x], "token_vectors")
        pooled = self._mean(x) if self._shape.pooling == "mean" else self._first(x)
        g.add("LpNormalization", [pooled], "embedding", axis=1, p=2)
        return g

    def _embed(self) -> str:
        """Sum and normalise word, position and segment embeddings. The embedding of the only segment is added to the
        position embeddings."""
        g = self._g
        words = self._kind.words(g, self._tensors["embeddings.word_embeddings.weight"])
        segment = self._tensors["embeddings.token_type_embeddings.weight"][0]
        places = self._tensors["embeddings.position_embeddings.weight"][: self._shape.positions] + segment
        start = g.constant("start", np.array([0], dtype=np.int64))
        length = g.add("Shape", ["input_ids"], "length", start=1, end=2)
        rows = g.add("Slice", [g.constant("places", places), start, length, start], "place_rows")
        return self._norm(g.add("Add", [words, rows], "summed"), "embeddings.LayerNorm")

    def _layer(self, x: str, name: str) -> str:
        attention = f"{name}.attention"
        parts = [f"{attention}.self.{part}" for part in ("query", "key", "value")]
        qkv = np.concatenate([self._matrix(part) for part in parts], axis=1)
        bias = np.concatenate([self._tensors[f"{part}.bias"] for part in parts])
        heads = self._kind.attention(self._g, x, qkv, bias, attention, self._shape.heads)
        mixed = self._linear(heads, f"{attention}.output.dense", self._kind.linear)
        x = self._add_and_norm(mixed, x, f"{attention}.output.LayerNorm")
        grown = self._linear(x, f"{name}.intermediate.dense", self._kind.grow)
        shrunk = self._linear(grown, f"{name}.output.dense", self._kind.shrink)
        return self._add_and_norm(shrunk, x, f"{name}.output.LayerNorm")

    def _matrix(self, name: str) -> Array:
        return self._tensors[f"{name}.weight"].T

    def _linear(self, x: str, name: str, write: _Linear) -> str:
        return write(self._g, x, self._matrix(name), self._tensors[f"{name}.bias"], name)

    def _add_and_norm(self, x: str, residual: str, name: str) -> str:
        return self._norm(self._g.add("Add", [x, residual], f"{name}.sum"), name)

    def _norm(self, x: str, name: str) -> str:
        gain = self._g.constant(f"{name}.gain", self._tensors[f"{name}.weight"])
        shift = self._g.constant(f"{name}.shift", self._tensors[f"{name}.bias"])
        return self._g.add("LayerNormalization", [x, gain, shift], f"{name}.out", axis=-1, epsilon=self._shape.epsilon)

    def _mean(self, x: str) -> str:
        g = self._g
        mask = g.add("Cast", ["attention_mask"], "mask", to=onnx_file.FLOAT)
        column = g.add("Unsqueeze", [mask, g.constant("last_axis", np.array([2], dtype=np.int64))], "mask_column")
        kept = g.add("Mul", [x, column], "kept")
        total = g.add("ReduceSum", [kept, "token_axis"], "total", keepdims=0)
        count = g.add("ReduceSum", [mask, "token_axis"], "count", keepdims=1)
        return g.add("Div", [total, count], "mean")

    def _first(self, x: str) -> str:
        index = self._g.constant("first", np.array(0, dtype=np.int64))
        return self._g.add("Gather", [x, index], "first_token", axis=1)


def _serialize(nodes: _Nodes, name: str) -> bytes:
    width = nodes.constants["embeddings.LayerNorm.gain"].shape[0]
    return onnx_file.model(
        name,
        nodes.nodes,
        (onnx_file.constant(name, value) for name, value in nodes.constants.items()),
        [onnx_file.value_info(part, onnx_file.INT32, ["n", "t"]) for part in ("input_ids", "attention_mask")],
        [
            onnx_file.value_info("embedding", onnx_file.FLOAT, ["n", width]),
            onnx_file.value_info("token_vectors", onnx_file.FLOAT, ["n", "t", width]),
        ],
        ir_version=_IR_VERSION,
        operator_sets={"": _OPSET, _FUSED: 1},
    )
