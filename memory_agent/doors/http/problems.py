"""Errors as problem details (RFC 9457), with their HTTP status. Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from memory_agent import errors
from relay import RelayError
from relay.access import PRESENTED_WITH

PROBLEM_TYPE = "application/problem+json"
_STATUS: dict[type[Exception], int] = {
    errors.ProtocolError: 400,
    errors.UnauthorizedError: 401,
    errors.ScopeMissingError: 403,
    errors.UserNotAllowedError: 403,
    errors.UnknownMethodError: 404,
    errors.RunUnknownError: 404,
    errors.RunBegunError: 409,
    errors.RunEndedError: 409,
    errors.InvalidInputError: 422,
    errors.RateLimitedError: 429,
    errors.DeadlineExceededError: 504,
    errors.StoreFullError: 507,
    errors.QuotaExceededError: 507,
    errors.ModelError: 503,
}
_WITH_HEADER = f"the header Authorization: Bearer TOKEN (memory-agent mcp and open: with {PRESENTED_WITH})"
_RETRYABLE = 503
_FAILED = 500
_RETRY_AFTER_S = 1


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error. `code` is its stable code; `args` are the exception's arguments in a Python client.

    `retryable`: whether the same request may succeed later.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    args: tuple[Any, ...] = ()


class Answered(msgspec.Struct, frozen=True):
    """A problem as sent over HTTP: its status, body, and the headers for that status."""

    status: int
    body: bytes
    headers: dict[str, str]


def problem(error: errors.MemoryAgentError | RelayError, status: int | None = None) -> Problem:
    """Describe an error. `status` overrides the HTTP status of the error's code, if a more specific one applies."""
    summary = (type(error).__doc__ or error.code).strip().partition("\n")[0]
    return Problem(
        type=f"urn:memory-agent:error:{error.code}",
        title=summary,
        status=_status(error) if status is None else status,
        detail=str(error).replace(PRESENTED_WITH, _WITH_HEADER),
        code=error.code,
        retryable=error.retryable,
        args=error.args,
    )


def answered(error: errors.MemoryAgentError | RelayError, status: int | None = None) -> Answered:
    described = problem(error, status)
    headers = {"content-type": PROBLEM_TYPE}
    if described.status == _STATUS[errors.UnauthorizedError]:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.RateLimitedError):
        headers["retry-after"] = str(math.ceil(error.retry_after_ms / 1000))
    elif described.status == _RETRYABLE:
        headers["retry-after"] = str(_RETRY_AFTER_S)
    return Answered(described.status, msgspec.json.encode(described), headers)


def _status(error: errors.MemoryAgentError | RelayError) -> int:
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return _RETRYABLE if error.retryable else _FAILED
