"""Maintenance commands through a client."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from served_host import client_of_host

from memory_agent.embedders import Embedder


def test_a_client_rebuilds_and_compacts_its_memory(tmp_path: Path, embedder: Embedder) -> None:
    with client_of_host(tmp_path, embedder) as client:
        made = [client.remember(f"the deploy {number} needs the VPN") for number in range(20)]
        client.forget([record.id for record in made[2:]])
        assert client.care.rebuild() == 2
        sizes = client.care.compact()
        assert sizes.bytes_after <= sizes.bytes_before
        assert client.stats().memories == 2
        assert [one.id for one in client.get([made[0].id])] == [made[0].id]
