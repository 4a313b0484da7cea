"""A changed graph needs a new revision; otherwise caches return the old graph, and stamps are wrong."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from memory_agent.embedders.cache import GRAPH_REVISION, fetch_model
from memory_agent.settings import EmbedderSettings

REVISION = 2
ONNX = "1.23.2"
DIGESTS = {
    "int8": "04bc5ea55504c9400f89c8a4b183bbfd1aafc24381c5baedf442ebcf6d688b91",
    "float32": "c4ebb58faf2ec02fafa9b655daf3ff862e3b4aacffe7e6e213cc123946ddfb4e",
}


@pytest.mark.parametrize("scheme", ["int8", "float32"])
def test_the_exported_graph_is_the_one_of_its_revision(model_cache: Path, scheme: str) -> None:
    """If this fails, increment GRAPH_REVISION (_GRAPH_FORMAT if the vectors are unchanged) and update the digests."""
    if version("onnx") != ONNX:
        pytest.skip(f"the digests are of graphs written by onnx {ONNX}")
    status = fetch_model(EmbedderSettings(scheme=scheme, allow_download=False), cache=model_cache)  # type: ignore[arg-type]
    assert (GRAPH_REVISION, Path(status.graph).stem.rpartition("-")[2]) == (REVISION, DIGESTS[scheme])
