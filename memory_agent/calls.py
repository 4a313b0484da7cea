"""What a client asks: one `Call` for each request, made and checked before anything is sent. Pure, no sockets.

Blocking and awaiting clients send the same calls, so that what one of them refuses or fills in, the other does too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from memory_agent.api import RecallOptions, check_deadline_ms, check_mode, check_options
from memory_agent.errors import InvalidInputError
from memory_agent.protocol import PROTOCOL_VERSION, RecallParams, zone_fields
from memory_agent.records import MemoryFilter, Mode, RecallResult

USUAL_TIMEOUT_MS = 10_000.0

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request: its method, parameters, the type of its result, the caller's patience, the protocol it needs."""

    method: str
    params: msgspec.Struct
    result: type[T]
    deadline_ms: float = USUAL_TIMEOUT_MS
    version: int = PROTOCOL_VERSION


def recall_call(
    query: str,
    top_k: int | None,
    filter: MemoryFilter | None,
    mode: Mode | None,
    deadline_ms: float | None,
    options: RecallOptions,
) -> Call[RecallResult]:
    """Return the request of a recall. Raises `InvalidInputError` as an embedded memory does."""
    said = check_options(options)
    params = RecallParams(
        query=query,
        top_k=top_k,
        filter=filter,
        mode=check_mode(mode),
        usual_deadline=deadline_ms is None,
        **said,  # type: ignore[arg-type]  # none of them is None any more
        **zone_fields(said.get("reference_time")),
    )
    patience_ms = USUAL_TIMEOUT_MS if deadline_ms is None else check_deadline_ms(deadline_ms)
    return Call("recall", params, RecallResult, patience_ms, params.version)


def listed(field: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts. Raises `InvalidInputError` for one text, which is no list of its letters."""
    if isinstance(texts, str):
        raise InvalidInputError(field, "must be a list of texts")
    return tuple(texts)
