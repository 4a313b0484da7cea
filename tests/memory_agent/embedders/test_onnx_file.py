"""The written files are byte-for-byte identical to the files that the package `onnx` writes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from memory_agent.embedders import onnx_file
from memory_agent.embedders.graph import export_graph
from memory_agent.embedders.schemes import Scheme
from memory_agent.embedders.weights import WEIGHTS, Model

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)
int64 = st.integers(-(2**63), 2**63 - 1)
attributes = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=8),
    st.one_of(int64, st.floats(width=32), st.lists(int64, min_size=1, max_size=4)),
    max_size=4,
)


@given(
    names,
    st.lists(names, max_size=4),
    st.lists(names, min_size=1, max_size=3),
    st.sampled_from(("", "com.x")),
    attributes,
)
def test_a_node_is_the_one_of_the_package(
    operator: str, inputs: list[str], outputs: list[str], domain: str, given_attributes: dict[str, onnx_file.Attribute]
) -> None:
    expected = helper.make_node(operator, inputs, outputs, domain=domain or None, **given_attributes)
    assert onnx_file.node(operator, inputs, outputs, domain, **given_attributes) == expected.SerializeToString()


@pytest.mark.parametrize("kind", ["float32", "int8", "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (1,), (300, 2), (0, 3)])
def test_a_constant_is_the_one_of_the_package(kind: str, shape: tuple[int, ...]) -> None:
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    assert onnx_file.constant("x", value) == numpy_helper.from_array(value, "x").SerializeToString()
    assert onnx_file.constant("x", np.asarray(value, order="F")) == onnx_file.constant("x", value)


@given(names, st.lists(st.one_of(st.text("nt", min_size=1, max_size=2), st.integers(1, 10**6)), min_size=1, max_size=3))
def test_an_input_is_the_one_of_the_package(name: str, shape: list[str | int]) -> None:
    expected = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    assert onnx_file.value_info(name, onnx_file.FLOAT, shape) == expected.SerializeToString()


@pytest.mark.parametrize("scheme", ["int8", "float32"])
def test_the_package_reads_the_whole_graph_and_writes_the_same_bytes(official: Model, scheme: Scheme) -> None:
    assert official.folder is not None
    graph = export_graph(official.folder / WEIGHTS, official.shape, scheme)
    read = onnx.load_model_from_string(graph)
    assert read.SerializeToString(deterministic=True) == graph
    assert [part.name for part in read.graph.output] == ["embedding", "token_vectors"]
    assert len(read.graph.initializer) > 60
