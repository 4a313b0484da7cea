"""Test that every block of commands in the README runs as printed, in a home folder with a coding agent's sessions."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from evaluation.conversations import write_locomo
from sessions.samples import claude_session, write_lines

from memory_agent.embedders.weights import cache_folder

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
INSTALL = "pip install"
"""Lines with this text are not run here; `test_release.py` and `make chroots` test installation."""
FOLLOWS = " --no-buffer"
"""A command with this option runs until it is interrupted."""
DAEMON = "memory-agent serve --light > ready & while [ ! -s ready ]; do sleep .1; done"
EXPECTED = {
    "connect claude-code": ("mcpServers", "imported", "Two tabs race for one token."),
    "serve --light": ("Staging needs the VPN", "<recalled_memories>"),
    "import ~/.claude": ("imported",),
    "curl": ('"memories":', '"accepted"'),
    "eval locomo": ("recall@5",),
    "make demo": ("ops.demo", "memory-agent serve", "pytest"),
}
"""Expected output, keyed by a text that occurs in the block."""


def expected(block: str) -> tuple[str, ...]:
    return next(texts for word, texts in EXPECTED.items() if word in block)


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder with a short path, because it contains the daemon's socket files."""
    with TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
        home = Path(folder)
        write_lines(home / ".claude" / "projects" / "-home-ann-shop" / "s-claude.jsonl", claude_session())
        (home / ".claude" / "CLAUDE.md").write_text(
            "# Deploys\n\n- The deploy to staging needs the VPN.\n", encoding="utf-8"
        )
        write_locomo(home, conversations=2).rename(home / "locomo10.json")
        yield home


def environment(home: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MEMORY_AGENT_", "XDG_", "CLAUDE"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return kept | {"HOME": str(home), "PATH": path, "MEMORY_AGENT_MODEL_CACHE": str(cache_folder())}


def run(block: str, home: Path) -> str:
    """Run the block in a terminal that answers yes to every prompt; return the output."""
    lines = [line for line in block.splitlines() if INSTALL not in line]
    script = "\n".join(f"{{ timeout 3 {line}\n}} || [ $? = 124 ]" if FOLLOWS in line else line for line in lines)
    folder = home
    if script.startswith("make "):
        script, folder = script.replace("make ", "make --dry-run "), ROOT
    if "run/http" in script:
        script = f"{DAEMON}\n{script}"
    terminal, theirs = pty.openpty()
    os.write(terminal, b"y\ny\ny\n")
    with (home / "printed").open("w+", encoding="utf-8") as printed:
        command = ["bash", "-eu", "-c", script]
        process = subprocess.Popen(
            command, stdin=theirs, stdout=printed, stderr=printed, cwd=folder, env=environment(home), process_group=0
        )
        try:
            code = process.wait(240)
        finally:
            end_group(process.pid)
            os.close(terminal)
            os.close(theirs)
        printed.seek(0)
        text = printed.read()
    assert code == 0, text
    return text


def end_group(group: int) -> None:
    """Stop the daemon that the block left running in the background."""
    deadline_s = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.killpg(group, signal.SIGTERM)  # raises once no process is left
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: next(word for word in EXPECTED if word in block))
def test_the_commands_of_a_block_run(block: str, home: Path) -> None:
    if (
        "curl" in block
        and " --json" not in subprocess.run(["curl", "--help", "all"], capture_output=True, text=True).stdout
    ):
        pytest.skip("this needs curl 7.82")
    printed = run(block, home)
    for text in expected(block):
        assert text in printed, printed
