"""A changed graph needs a new revision; otherwise caches serve the old one and stamps are wrong."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from memory_agent.embedders.cache import GRAPH_REVISION, fetch_model
from memory_agent.settings import EmbedderSettings

REVISION = 2
ONNX = "1.23.2"
DIGESTS = {
    "int8": "a69fa6ccde9963da86dc2f9fc1ddde3f5cd840318058c38e6ab35a0950a0b531",
    "float32": "7a1ff57b34243ee329b19207830142b60babdc69d7c85fa98d9cd729400adcc2",
}


@pytest.mark.parametrize("scheme", ["int8", "float32"])
def test_the_exported_graph_is_the_one_of_its_revision(model_cache: Path, scheme: str) -> None:
    """When this fails, increment GRAPH_REVISION and update revision and digests here."""
    if version("onnx") != ONNX:
        pytest.skip(f"the digests are of graphs written by onnx {ONNX}")
    status = fetch_model(EmbedderSettings(scheme=scheme, allow_download=False), cache=model_cache)  # type: ignore[arg-type]
    assert (GRAPH_REVISION, Path(status.graph).stem.rpartition("-")[2]) == (REVISION, DIGESTS[scheme])
