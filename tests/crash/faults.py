"""The preloaded shim (`faults.c`), which is built once and accepts commands while its process runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")


def missing() -> str:
    """Return why the shim cannot be built here, or "" if it can."""
    return "" if sys.platform == "linux" and _compiler() else "the failing disk needs Linux and a C compiler"


def build(folder: Path) -> Path:
    """Compile the shim into `folder` and return the library."""
    library = folder / "faults.so"
    subprocess.run([str(_compiler()), "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class Order:
    """Sends commands to the shim of one process."""

    def __init__(self, library: Path | None, file: Path) -> None:
        self._library = library
        self._file = file
        self._hits = file.with_name(file.name + ".hit")
        self._number = 0
        self.boot_id: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment of the process: ours plus the shim."""
        if self._library is None:
            return dict(os.environ)
        own = {"LD_PRELOAD": str(self._library), "FAULT_ORDER": str(self._file)}
        return {**os.environ, **own, **({"FAULT_BOOT_ID": str(self.boot_id)} if self.boot_id else {})}

    def give(self, kind: str, calls: str, path: str, first: int = 1, count: int = 1) -> None:
        """Fail `count` such calls (0: all), starting with call number `first`. See `faults.c`."""
        assert self._library is not None
        self.revoke()
        temporary = self._file.with_name(self._file.name + ".new")
        self._number += 1
        temporary.write_text(f"{kind} {calls} {path} {first} {count} {self._number}\n")
        temporary.replace(self._file)

    def revoke(self) -> None:
        """Withdraw the command and reset the count of faults."""
        self._file.unlink(missing_ok=True)
        self._hits.unlink(missing_ok=True)

    @property
    def hits(self) -> int:
        """Number of faults since the command was sent."""
        return self._hits.stat().st_size if self._hits.exists() else 0


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")
