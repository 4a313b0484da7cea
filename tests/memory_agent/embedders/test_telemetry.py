"""Embedding leaves no files in the temporary folder: the engine's telemetry is disabled before its import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from memory_agent.settings import EmbedderSettings
from memory_agent.embedders import open_embedder
open_embedder(EmbedderSettings(allow_download=False)).embed_query("anything")
"""


def test_embedding_leaves_no_file_of_the_engine_behind(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment | {"TMPDIR": str(tmp_path)}, check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []
