"""Write a graph as an ONNX file, using only the protocol buffer messages that the exporter needs.

Not depending on the package `onnx` saves 36 MB of a 360 MB installation.
`tests/memory_agent/embedders/test_onnx_file.py` compares every byte with the output of that package. Source:
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

FLOAT = 1
INT32 = 6
_ELEMENTS = {"float32": FLOAT, "int8": 3, "int32": INT32, "int64": 7}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
"""How a field of a protocol buffer is encoded."""

Attribute = int | float | Sequence[int]


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], domain: str, **attributes: Attribute) -> bytes:
    """Return an operator with the names of its inputs and outputs; `domain` is "" for the standard operators."""
    return b"".join(
        (
            *(_text(1, name) for name in inputs),
            *(_text(2, name) for name in outputs),
            _text(4, operator),
            *(_message(5, _attribute(name, attributes[name])) for name in sorted(attributes)),
            _text(7, domain) if domain else b"",
        )
    )


def constant(name: str, value: npt.NDArray[np.generic]) -> bytes:
    """Return a named array of float32, int8, int32 or int64. Raises `KeyError` for other types."""
    dimensions = b"".join(_number(1, size) for size in value.shape)
    return dimensions + _number(2, _ELEMENTS[value.dtype.name]) + _text(8, name) + _message(9, value.tobytes())


def value_info(name: str, element: int, shape: Sequence[str | int]) -> bytes:
    """Return the description of an input or output; dimensions are sizes or names of variable sizes."""
    sizes = (_text(2, size) if isinstance(size, str) else _number(1, size) for size in shape)
    tensor = _number(1, element) + _message(2, b"".join(_message(1, size) for size in sizes))
    return _text(1, name) + _message(2, _message(1, tensor))


def model(
    name: str,
    nodes: Iterable[bytes],
    constants: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    *,
    ir_version: int,
    operator_sets: Mapping[str, int],
) -> bytes:
    """Return the file for a graph with these parts; `operator_sets` gives the operator versions by domain."""
    graph = b"".join(
        (
            *(_message(1, part) for part in nodes),
            _text(2, name),
            *(_message(5, part) for part in constants),
            *(_message(11, part) for part in inputs),
            *(_message(12, part) for part in outputs),
        )
    )
    sets = (_message(8, _text(1, domain) + _number(2, version)) for domain, version in operator_sets.items())
    return _number(1, ir_version) + _text(2, "memory-agent") + _message(7, graph) + b"".join(sets)


def _attribute(name: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        return _text(1, name) + _key(2, _FIXED32) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, 2)
    return _text(1, name) + b"".join(_number(8, one) for one in value) + _number(20, 7)


def _key(field: int, encoding: int) -> bytes:
    return _varint(field << 3 | encoding)


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())


def _message(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encode a number in groups of seven bits, lowest group first. A negative number is encoded as 64-bit two's
    complement."""
    value &= (1 << 64) - 1
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
