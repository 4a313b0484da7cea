"""The checks of `memory-agent verify` on an open store."""

from __future__ import annotations

from memory_agent.care import RecordsCheckup
from memory_agent.errors import StoreDamagedError
from memory_agent.storage.snapshot import RECORDS
from memory_agent.storage.store import Store
from relay.disk import Findings


def verified(store: Store) -> int:
    """Return the number of memories. Raises `StoreDamagedError` with the findings if the store is damaged."""
    findings = Findings()
    with store._environment.read() as transaction:
        RecordsCheckup(transaction, findings, lambda what, done, total: None).run()
        if findings.listed():
            raise StoreDamagedError(str(findings.listed()))
        return transaction.count(RECORDS)
