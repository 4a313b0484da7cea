"""Creates an engine's folder and writes to it once, in a new process for each folder on a line of standard input.

    python -m tests.crash.first_write_process ENGINE

ENGINE is an engine of `full_disk_process`, or an encrypted engine, whose first write creates its key. The shim kills
the new process at the specified call. This process prints its exit status as a line. The new processes are forks,
because the imports take longer than a write.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from memory_agent.settings import StoreSettings
from memory_agent.storage.environment import UserKey, records_at
from memory_agent.storage.snapshot import META
from relay.crypto import KeyRing

from .encryption import KEYS
from .full_disk_process import ENGINES, KEPT, MAP_BYTES, Engine


def _encrypted_records(folder: Path) -> Engine:
    environment = records_at(
        folder / "records", StoreSettings(map_size_bytes=MAP_BYTES), UserKey(KeyRing(folder / KEYS), "alice")
    )

    def write(value: bytes) -> None:
        with environment.write() as transaction:
            transaction.put(META, value[:4], value)

    def read(value: bytes) -> bool:
        with environment.read() as transaction:
            return transaction.get(META, value[:4]) == value

    return Engine("records/data.mdb", write, read)


FIRST_WRITES: dict[str, Callable[[Path], Engine]] = {
    "journal": ENGINES["journal"],
    "records": ENGINES["records"],
    "encrypted records": _encrypted_records,
}


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _write_and_exit(sys.argv[1], Path(line.rstrip("\n")))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _write_and_exit(engine: str, folder: Path) -> NoReturn:
    try:
        FIRST_WRITES[engine](folder).write(KEPT)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
