"""The methods of every blocking client: those of `MemoryProvider`, and those that an embedded `Memory` lacks."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from memory_agent.erasure.request import ErasureReceipt
from memory_agent.provider import (
    CareProvider,
    ErasureProvider,
    MemoryProvider,
    RunsProvider,
    SharedProvider,
    SonaProvider,
)
from memory_agent.verbs.protocol import DaemonStatus, HostAddress, QuarantinedEvent, RetryReport

Ask = Callable[..., Any]
"""Calls a verb by the name of its method, with keyword arguments."""


class _Methods:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask


class RunsMethods(_Methods, RunsProvider):
    pass


class SonaMethods(_Methods, SonaProvider):
    pass


class SharedMethods(_Methods, SharedProvider):
    pass


class CareMethods(_Methods, CareProvider):
    pass


class ErasureMethods(_Methods, ErasureProvider):
    def erase_user(self, *, dry_run: bool = False) -> ErasureReceipt:
        """Erase the user: memories, events, runs, learner and folder.

        Requests wait until the erasure ends, and are then answered from an empty memory.

        >>> record = memory.remember("Staging needs the VPN")
        >>> receipt = memory.erasure.erase_user()
        >>> receipt.memories, memory.stats().memories
        (1, 0)
        """
        return self._ask("erasure.erase_user", dry_run=dry_run)


class _Namespaces(_Methods, MemoryProvider):
    @cached_property
    def runs(self) -> RunsMethods:
        return RunsMethods(self._ask)

    @cached_property
    def sona(self) -> SonaMethods:
        return SonaMethods(self._ask)

    @cached_property
    def shared(self) -> SharedMethods:
        return SharedMethods(self._ask)

    @cached_property
    def care(self) -> CareMethods:
        return CareMethods(self._ask)

    @cached_property
    def erasure(self) -> ErasureMethods:
        return ErasureMethods(self._ask)


class MemoryMethods(_Namespaces):
    """Methods that every daemon client has in addition to those of `Memory`.

    In the examples, `memory` is `MemoryClient("alice")`, `publisher` sends to the daemon's relay, and the quarantine
    has one entry: bytes that are not an event.
    """

    def status(self) -> DaemonStatus:
        """Return the state of the daemon.

        >>> [part.name for part in memory.status().parts if part.state != "running"]
        []
        """
        return self._ask("status")

    def metrics(self) -> str:
        """Return the daemon's metrics in the Prometheus text format. Requires a key that is valid for all users and has
        the scope `metrics`.

        >>> [line for line in memory.metrics().splitlines() if line.startswith("memory_agent_events_total")][0]
        'memory_agent_events_total{outcome="read"} 0.0'
        """
        return self._ask("metrics")

    def address(self) -> HostAddress:
        """Wake the user's memory and return the Ray actor that hosts it.

        >>> memory.address()
        HostAddress(actor='...', namespace='...')
        """
        return self._ask("address")

    def wait(self, through: Mapping[str, int], timeout_s: float) -> None:
        """Wait until each user's events up to the given journal number are handled. Raises `DeadlineExceededError`.

        >>> event = {"event_type": "user_input", "user_id": "alice", "payload": {"text": "Staging needs the VPN"}}
        >>> event_id = publisher.publish(event)
        >>> memory.wait(publisher.flush().acked_through, timeout_s=30)
        >>> memory.stats().memories
        1
        """
        return self._ask("wait", through=through, timeout_s=timeout_s)

    def owner(self, run_id: str | None = None, session_id: str | None = None) -> str | None:
        """Return the user that owns a run or a session whose events are published as `system`, or None if unknown.

        Requires a key for all users. Raises `InvalidInputError` unless exactly one of the two ids is passed.

        >>> run = memory.runs.begin("Deploy to staging")
        >>> memory.owner(run_id=run.id), memory.owner(run_id="unknown")
        ('alice', None)
        """
        return self._ask("owner", run_id=run_id, session_id=session_id)

    def quarantined(self, after: int = 0, limit: int = 100) -> list[QuarantinedEvent]:
        """Return at most `limit` events that could not be handled, oldest first, with ids greater than `after`.

        >>> [(event.id, event.code, event.size_bytes) for event in memory.quarantined()]
        [(1, 'malformed_event', 5)]
        """
        return self._ask("quarantined", after=after, limit=limit)

    def retry_quarantined(self, ids: Sequence[int] = ()) -> RetryReport:
        """Retry the quarantined events with these ids (default: all). Raises `InvalidInputError`.

        >>> memory.retry_quarantined([1])
        RetryReport(handled=0, still_failing=1)
        """
        return self._ask("retry_quarantined", ids=ids)

    def drop_quarantined(self, ids: Sequence[int] = ()) -> int:
        """Delete the quarantined events with these ids (default: all); return their number. Raises `InvalidInputError`.

        >>> memory.drop_quarantined(), memory.quarantined()
        (1, [])
        """
        return self._ask("drop_quarantined", ids=ids)
