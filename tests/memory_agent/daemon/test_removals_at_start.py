"""A daemon finishes interrupted removals of users."""

from __future__ import annotations

import tempfile
from pathlib import Path

from served_gateway import gateway_without_ray

from memory_agent.embedders import open_embedder
from memory_agent.settings import EmbedderSettings


def test_a_half_removed_user_is_removed_at_the_start() -> None:
    with tempfile.TemporaryDirectory(prefix="left-") as name:
        folder = Path(name)
        for users in (folder / "users", folder / "replaced-20261120T000000000000" / "users"):
            (users / ".erased-01KHJY9080NWG22H9Q8BBD7B80" / "records").mkdir(parents=True)
            (users / ".erased-01KHJY9080NWG22H9Q8BBD7B80" / "records" / "data.mdb").write_bytes(b"zanzibarquokka")
            (users / "bob").mkdir()
        embedder = open_embedder(EmbedderSettings(allow_download=False))
        with gateway_without_ray(folder, embedder):
            assert list(folder.rglob(".erased-*")) == []
            assert len(list(folder.rglob("bob"))) == 2
        embedder.close()
