"""The real model, built once per test run into a separate cache, and texts to embed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from embedder_inputs import FLOAT32, INT8, ServerProcess, StartServer

from memory_agent.embedders import minilm
from memory_agent.embedders.cache import fetch_model, obtain
from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.embedders.weights import PACKAGE, Model, find_default
from memory_agent.settings import EmbedderSettings


@pytest.fixture(scope="module", autouse=True)
def _model_loaded_each_time(model_loaded_once: None) -> Iterator[None]:
    """Undo `model_loaded_once`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minilm, "open_minilm", minilm.open_minilm.__wrapped__)  # type: ignore[attr-defined]
        yield


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("models")
    fetch_model(INT8, cache=cache)
    return cache


@pytest.fixture(scope="session")
def official() -> Model:
    """The default model with the weights of the installed package."""
    return find_default(PACKAGE)


@pytest.fixture(scope="session")
def int8_model(model_cache: Path) -> MiniLM:
    return MiniLM(obtain(INT8, model_cache), 256)


@pytest.fixture(scope="session")
def float32_model(model_cache: Path) -> MiniLM:
    return MiniLM(obtain(FLOAT32, model_cache), 256)


@pytest.fixture
def laned(int8_model: MiniLM) -> Iterator[LanedEmbedder]:
    embedder = LanedEmbedder(int8_model)
    yield embedder
    embedder.close()


@pytest.fixture(scope="session")
def real_sentences() -> list[str]:
    """200 turns of real dialogue, if available."""
    path = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"
    if not path.exists():
        pytest.skip("the real dialogues are not available")
    conversations = json.loads(path.read_text())
    sessions = [turns for c in conversations for turns in c["conversation"].values() if isinstance(turns, list)]
    return [f"{turn['speaker']}: {turn['text']}" for turns in sessions for turn in turns][::7][:200]


@pytest.fixture
def start_server(tmp_path: Path, model_cache: Path) -> Iterator[StartServer]:
    """Return a function that starts servers at this test's ipc endpoint; kill them when the test ends."""
    started: list[ServerProcess] = []

    def start(*arguments: str, settings: EmbedderSettings = INT8, cache: Path = model_cache) -> ServerProcess:
        settings_json = msgspec.json.encode(settings).decode()
        server = ServerProcess(
            f"ipc://{tmp_path}/e.sock", "--settings", settings_json, "--cache", str(cache), *arguments
        )
        started.append(server)
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture(scope="module")
def shared_server(model_cache: Path) -> Iterator[ServerProcess]:
    """A server shared by those tests of a file that do not stop the server and need no special settings."""
    with tempfile.TemporaryDirectory(prefix="embedder-") as folder:
        settings = msgspec.json.encode(INT8).decode()
        server = ServerProcess(f"ipc://{folder}/e.sock", "--settings", settings, "--cache", str(model_cache))
        yield server
        server.kill()


@pytest.fixture
def remote(shared_server: ServerProcess) -> Iterator[RemoteEmbedder]:
    embedder = RemoteEmbedder(shared_server.endpoint)
    yield embedder
    embedder.close()


@pytest.fixture(scope="session")
def prefixed(model_cache: Path) -> Callable[[str, str], MiniLM]:
    """Return a function that opens the model with prefixes for queries and passages."""
    return lambda query, passage: MiniLM(obtain(INT8, model_cache), 256, query, passage)
