"""Creates an engine's folder, writes to it once, and reports success. The shim kills the process at the specified call.

    python -m tests.crash.first_write_process ENGINE FOLDER

ENGINE is an engine of `full_disk_process`, or an encrypted engine, whose first write creates its key.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

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


if __name__ == "__main__":
    FIRST_WRITES[sys.argv[1]](Path(sys.argv[2])).write(KEPT)
    print("written", flush=True)
