"""Processes that own a store, controlled through their standard input and output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OWNER = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from samples import SMALL, memory, new_key
from memory_agent.errors import MemoryAgentError
from memory_agent.storage.store import Store
try:
    key = new_key(Path({keys!r})) if {keys!r} else None
    store = Store.open(Path({folder!r}), SMALL, role={role!r}, key=key)
    print("open", store.epoch, flush=True)
except MemoryAgentError as error:
    print(error.code, flush=True)
    sys.exit()
for line in sys.stdin:
    try:
        if line == "write\\n":
            with store.batch() as batch:
                batch.put(memory(id=f"{{store.epoch}}-{{store.state.last_change}}"), None)
            print("written", flush=True)
        elif line == "count\\n":
            print(store.counts().memories, flush=True)
        elif line == "close\\n":
            store.close()
            print("closed", flush=True)
    except MemoryAgentError as error:
        print(error.code, flush=True)
"""


class OwnerProcess:
    """A process that has opened a store, or has failed to do so."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.greeting = self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def owner(folder: Path, role: str, keys: Path | None = None) -> Iterator[OwnerProcess]:
    """Start a process that opens the store in `folder`, encrypted with `keys`; stop it when the block ends."""
    code = _OWNER.format(here=str(Path(__file__).parent), folder=str(folder), role=role, keys=str(keys or ""))
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield OwnerProcess(process)
    finally:
        process.kill()
        with process:
            pass
