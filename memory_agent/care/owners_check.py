"""The map of who owns a run against its checksums, and its order against its pairs. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from memory_agent.care.findings import Findings
from memory_agent.storage.environment import open_environment
from memory_agent.storage.ownership import MAP_SIZE_BYTES, ORDER, PAIRS, opened_owner, owners_encryption
from memory_agent.storage.user_key import UserKey


def check_pairs(folder: Path, findings: Findings, key: UserKey | None = None) -> int:
    """Check the map in `folder`, encrypted with the system's `key`, and return how many pairs it holds.

    Raises `StoreError`, `StoreEncryptedError`, `StoreNotEncryptedError`, `EncryptionKeyMissingError`.
    """
    encryption = owners_encryption(key)
    environment = open_environment(folder, MAP_SIZE_BYTES, (PAIRS, ORDER), readonly=True, encryption=encryption)
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
