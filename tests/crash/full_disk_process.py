"""Writes to one engine while its disk has a fault, in a new process for each JSON array on a line of standard input.

The array is [ENGINE, FOLDER, "KIND CALLS FIRST"]. ENGINE is journal or records. CALLS is write or sync. The preloaded
shim makes call number FIRST on the engine's file fail once with KIND. The new process prints a line of JSON: the error
code, what could be read afterwards, and whether the same write succeeds without the fault; or null if it died. The new
processes are forks, because the imports take longer than the writes.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from memory_agent.errors import MemoryAgentError
from memory_agent.storage.environment import open_environment
from relay import JournalSettings, RelayError
from relay.disk import Environment
from relay.journal.file import open_file

from .faults import Order

MAP_BYTES = 16 << 20
KEPT, NEW = b"kept", b"new" * 30_000


class Engine(NamedTuple):
    """An engine: the name of its file, and how to write to it and read from it."""

    file: str
    write: Callable[[bytes], None]
    read: Callable[[bytes], bool]


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _report_and_exit(*json.loads(line))
        if os.waitpid(child, 0)[1]:
            print("null", flush=True)


def _report_and_exit(engine: str, folder: str, fault: str) -> NoReturn:
    try:
        print(json.dumps(_report(engine, Path(folder), fault.split())), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _report(name: str, folder: Path, fault: list[str]) -> dict[str, object]:
    order = Order(Path(os.environ["LD_PRELOAD"]), Path(os.environ["FAULT_ORDER"]))
    engine = ENGINES[name](folder)
    engine.write(KEPT)
    order.give(fault[0], fault[1], engine.file, int(fault[2]))
    code = ""
    try:
        engine.write(NEW)
    except (MemoryAgentError, RelayError) as error:
        code = error.code
    hits = order.hits
    order.revoke()
    read = _done(lambda: engine.read(KEPT) and not engine.read(NEW))
    wrote = _done(lambda: engine.write(NEW)) and _done(lambda: engine.read(KEPT) and engine.read(NEW))
    return {"hits": hits, "code": code, "read": read, "wrote": wrote}


def _done(act: Callable[[], bool | None]) -> bool:
    try:
        return act() is not False
    except (MemoryAgentError, RelayError):
        return False


def _journal(folder: Path) -> Engine:
    opened = open_file(folder / "journal", JournalSettings(map_size_bytes=MAP_BYTES))
    return _pairs("journal/data.mdb", "events", opened)


def _records(folder: Path) -> Engine:
    return _pairs("records/data.mdb", "all", open_environment(folder / "records", MAP_BYTES, ("all",)))


def _pairs(file: str, database: str, environment: Environment) -> Engine:
    def write(value: bytes) -> None:
        with environment.write() as transaction:
            transaction.put(database, value[:4], value)

    def read(value: bytes) -> bool:
        with environment.read() as transaction:
            return transaction.get(database, value[:4]) == value

    return Engine(file, write, read)


ENGINES: dict[str, Callable[[Path], Engine]] = {"journal": _journal, "records": _records}


if __name__ == "__main__":
    main()
