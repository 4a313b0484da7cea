"""The map of who owns a run against its checksums, and its order against its pairs. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from memory_agent.care.findings import Findings
from memory_agent.storage.environment import Environment
from memory_agent.storage.ownership import MAP_SIZE_BYTES, ORDER, PAIRS, opened_owner


def check_pairs(folder: Path, findings: Findings) -> int:
    """Check the map in `folder` and return how many pairs it holds. Raises `StoreError`."""
    environment = Environment.open(folder, MAP_SIZE_BYTES, (PAIRS, ORDER), readonly=True)
    try:
        with environment.read() as transaction:
            pairs = dict(transaction.scan(PAIRS))
            ordered = {key for _, key in transaction.scan(ORDER)}
    finally:
        environment.close()
    damaged = sum(opened_owner(key, value) is None for key, value in pairs.items())
    findings.add("pairs", "do not match their checksum", damaged)
    findings.add("order", "does not hold each pair once", len(ordered ^ set(pairs)))
    return len(pairs)
