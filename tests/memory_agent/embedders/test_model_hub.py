"""Downloads from the model hub, tested with a local server that implements the hub's HTTP interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from memory_agent.embedders.weights import REPOSITORY, REVISION, TOKENIZER, WEIGHTS, Model, weights_folder

pytest.importorskip("huggingface_hub", reason="the optional library of the model hub is not installed")

_PROGRAM = """
import json, sys
from pathlib import Path
from memory_agent.settings import EmbedderSettings
from memory_agent.embedders.cache import fetch_model
from memory_agent.errors import ModelError
steps = []
try:
    status = fetch_model(EmbedderSettings(scheme="int8"), cache=Path(sys.argv[1]), package="",
                         progress=lambda *step: steps.append(step))
    print(json.dumps({"origin": status.origin, "state": status.state, "steps": steps[-1:]}))
except ModelError as error:
    print(json.dumps({"code": error.code, "message": str(error)}))
"""


class Hub:
    """Serves the files of one folder as the pinned revision, with one byte changed in the `damaged` files."""

    def __init__(self, folder: Path) -> None:
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
                prefix = f"/{REPOSITORY}/resolve/{REVISION}/"
                name = self.path.removeprefix(prefix)
                if name not in (WEIGHTS, TOKENIZER):
                    self.send_error(404)
                    return
                content = bytearray((folder / name).read_bytes())
                if name in hub.damaged:
                    content[100] ^= 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("ETag", f'"{name}"')
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


@pytest.fixture
def hub(official: Model) -> Iterator[Hub]:
    assert official.folder is not None
    hub = Hub(official.folder)
    yield hub
    hub.close()


def fetch(endpoint: str, cache: Path) -> dict[str, object]:
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(cache / "home")}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(cache)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    said: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return said


def test_weights_are_fetched_checked_and_built_with_progress(tmp_path: Path, hub: Hub) -> None:
    said = fetch(hub.endpoint, tmp_path)
    assert (said["origin"], said["state"]) == ("hub", "ready")
    ((_, done, total),) = said["steps"]  # type: ignore[misc,attr-defined]
    assert done == total > 0
    names = {path.name for path in weights_folder(tmp_path).iterdir()}
    assert names == {WEIGHTS, TOKENIZER}


def test_a_fetched_model_is_not_requested_again(tmp_path: Path, hub: Hub) -> None:
    fetch(hub.endpoint, tmp_path)
    asked = len(hub.asked)
    assert fetch(hub.endpoint, tmp_path)["origin"] == "cache"
    assert len(hub.asked) == asked


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(tmp_path: Path, hub: Hub) -> None:
    hub.damaged.add(WEIGHTS)
    assert fetch(hub.endpoint, tmp_path)["code"] == "model_checksum"
    assert not (weights_folder(tmp_path) / WEIGHTS).exists()
    hub.damaged.clear()
    assert fetch(hub.endpoint, tmp_path)["state"] == "ready"


@pytest.mark.slow  # the hub's library retries for 20 s
def test_an_unreachable_hub_is_a_missing_model(tmp_path: Path, hub: Hub) -> None:
    hub.close()
    said = fetch(hub.endpoint, tmp_path)
    assert said["code"] == "model_missing"
    assert "memory-agent model fetch" in str(said["message"])
    assert "could not be downloaded" in str(said["message"])
