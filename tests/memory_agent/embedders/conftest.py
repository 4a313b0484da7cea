"""The real model, built once per run into a cache of its own, and texts to embed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from memory_agent.config import EmbedderSettings
from memory_agent.embedders.cache import fetch_model, obtain
from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.embedders.weights import PACKAGE, Model, find_default

OFFLINE = EmbedderSettings(allow_download=False)
INT8 = msgspec.structs.replace(OFFLINE, scheme="int8")
FLOAT32 = msgspec.structs.replace(OFFLINE, scheme="float32")

SENTENCES = [
    "Fix the race in the session manager with a mutex.",
    "Three runs failed because the token had expired.",
    "naïve café — Ünïcode, 東京, مرحبا, emoji 🙂 and a\ttab",
    "a",
    "The deployment was rolled back; the migration had locked the accounts table for nine minutes. " * 3,
    "def open(path): return Path(path).read_text()",
    "word " * 400,
]


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("models")
    fetch_model(INT8, cache=cache)
    return cache


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The default model with its weights, as the installed package carries them."""
    return find_default(tmp_path_factory.mktemp("none"), PACKAGE)


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
    """400 turns of real dialogue, where they are at hand."""
    path = Path(__file__).parents[4] / "shared" / "data" / "locomo_dev.json"
    if not path.exists():
        pytest.skip("the real dialogues are not beside this checkout")
    conversations = json.loads(path.read_text())
    sessions = [turns for c in conversations for turns in c["conversation"].values() if isinstance(turns, list)]
    return [f"{turn['speaker']}: {turn['text']}" for turns in sessions for turn in turns][::7][:400]


class ServerProcess:
    """An embedder in a process of its own."""

    def __init__(self, endpoint: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "memory_agent.embedders", "--endpoint", endpoint, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline() or "{}")
        self.endpoint: str = self.ready.get("endpoint", endpoint)

    def stop(self) -> tuple[int, str]:
        """End it with SIGTERM; return its exit code and what it logged."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.wait()

    def wait(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def start_server(tmp_path: Path, model_cache: Path) -> Iterator[StartServer]:
    """Start servers at an ipc endpoint of this test; what is left of them is killed at its end."""
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


@pytest.fixture
def remote(start_server: StartServer) -> Iterator[RemoteEmbedder]:
    embedder = RemoteEmbedder(start_server().endpoint)
    yield embedder
    embedder.close()
