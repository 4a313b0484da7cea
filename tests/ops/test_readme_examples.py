"""Test that the examples in the README and the reference run as printed; all except the library's use a daemon."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from polling import wait_until

from memory_agent import MemoryClient
from memory_agent.errors import DeadlineExceededError

ROOT = Path(__file__).parents[2]
PAGES = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "ops/REFERENCE.md"))
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL)
CONSOLE = re.findall(r"```console\n(.*?)```", PAGES, re.DOTALL)
PUB_PORT = "tcp://127.0.0.1:5555"
LIBRARY = [snippet for snippet in SNIPPETS if "Memory.open" in snippet]
OTHERS = [snippet for snippet in SNIPPETS if "Memory.open" not in snippet]


def environment(home: str) -> dict[str, str]:
    """Return our environment, with user data in `home` and the same model cache."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MEMORY_AGENT_", "RAY_"))}
    cache = os.environ.get("MEMORY_AGENT_MODEL_CACHE")
    own = {"XDG_DATA_HOME": home, "MEMORY_AGENT_RECALL__DEADLINE_MS": "60000"}
    return kept | own | ({"MEMORY_AGENT_MODEL_CACHE": cache} if cache else {})


def run(snippet: str, home: str) -> str:
    command = [sys.executable, "-c", snippet]
    done = subprocess.run(command, cwd=home, env=environment(home), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shares(client: MemoryClient) -> bool:
    """Whether the process of the shared knowledge has started, which can take longer than a request waits."""
    with suppress(DeadlineExceededError):
        client.shared.published()
        return True
    return False


@pytest.fixture(scope="module")
def daemon() -> Iterator[tuple[str, dict[str, Any]]]:
    """A daemon on the default data folder, in a temporary home, with a plain PUB endpoint."""
    with TemporaryDirectory(prefix="r-") as home:
        settings = ('relay.broker.pub_bind=["tcp://127.0.0.1:*"]', "daemon.dedicated_hosts=0", "daemon.shared_hosts=1")
        command = [sys.executable, "-m", "memory_agent", "serve"]
        command += [word for setting in settings for word in ("--set", setting)]
        with (
            open(Path(home) / "daemon.log", "w", encoding="utf-8") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(home)) as process,
        ):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (Path(home) / "daemon.log").read_text(encoding="utf-8")
            try:
                ready = json.loads(line)
                with MemoryClient("alice", data_dir=ready["data_dir"]) as client:
                    wait_until(lambda: shares(client))
                yield home, ready
            finally:
                process.terminate()
                process.wait(60)


def test_there_are_examples_for_each_kind_of_user() -> None:
    assert len(LIBRARY) == 3
    text = "\n".join(OTHERS)
    for name in ("Publisher", "zmq.PUB", "MemoryClient", "AsyncMemoryClient", "ActorMemoryProvider", "context_block"):
        assert name in text


@pytest.mark.parametrize("snippet", LIBRARY)
def test_the_library_example_works(snippet: str) -> None:
    with TemporaryDirectory() as home:
        assert run(snippet, home).startswith("Token rotation races")


def test_publishing_without_a_daemon_fails_with_the_reason() -> None:
    (snippet,) = [snippet for snippet in OTHERS if "Made the token rotation atomic" in snippet]
    with TemporaryDirectory() as home:
        command = [sys.executable, "-c", snippet]
        done = subprocess.run(command, cwd=home, env=environment(home), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("is the relay running? (memory-agent serve)")


@pytest.mark.parametrize("text", CONSOLE)
def test_the_console_example_shows_the_real_output(text: str) -> None:
    *prepared, asked = [shlex.split(line[2:])[1:] for line in text.splitlines() if line.startswith("$ ")]
    answer = [line for line in text.splitlines() if not line.startswith("$ ")]
    with TemporaryDirectory() as home:
        for words in prepared:
            type_in(words, home)
        shown = type_in(asked, home).splitlines()
    assert [without_figures(line) for line in shown[: len(answer)]] == [without_figures(line) for line in answer]


def type_in(words: list[str], home: str) -> str:
    command = [sys.executable, "-m", "memory_agent", *words]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_figures(line: str) -> str:
    """Remove ids and scores (the last digit of a score depends on the processor)."""
    return re.sub(r"\b[0-9A-Z]{26}\b|(?<=score )\S+|(?<=cosine )[\d.]+", "", line).rstrip()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("snippet", OTHERS, ids=lambda snippet: re.findall(r"import (\w+)", snippet)[-1])
def test_the_other_examples_work_against_a_daemon(snippet: str, daemon: tuple[str, dict[str, Any]]) -> None:
    home, ready = daemon
    assert ready["ready"]
    run(snippet.replace(PUB_PORT, ready["endpoints"]["relay_pub"][0]), home)
