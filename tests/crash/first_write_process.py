"""Makes an engine's folder and writes to it once, then says so. Killed by the shim at a call that its order names.

python -m tests.crash.first_write_process ENGINE FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from .full_disk_process import ENGINES, KEPT

if __name__ == "__main__":
    ENGINES[sys.argv[1]](Path(sys.argv[2])).write(KEPT)
    print("written", flush=True)
