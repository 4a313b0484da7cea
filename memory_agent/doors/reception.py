"""Admits requests from any door: credential -> principal -> scope -> slot -> verb -> reply.

The principal depends only on the credential, never on the content of the request. The verb table defines the scope that
a request requires; an unknown verb requires the scope `admin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from memory_agent.doors.request_quota import RequestQuota
from memory_agent.errors import MemoryAgentError, ScopeMissingError
from memory_agent.tracing import server_span
from memory_agent.verbs.protocol import DEFAULT_USER, Request, decode, encode_fault, fault_in
from memory_agent.verbs.table import BY_NAME
from relay import Credentials, Principal, Scope
from relay.log import log

_REMOVING = frozenset({"erase", "forget", "forget_session", "unpublish"})


class Service(Protocol):
    async def handle(self, request: Request, principal: Principal) -> bytes:
        """Return the encoded reply."""
        ...


@dataclass(frozen=True)
class Credential:
    """A token, or the CURVE key with which the caller's connection was authenticated."""

    token: str = ""
    curve_key: str | None = None


class Reception:
    """Admits requests to one service, for any number of doors. Must be used from a single event loop."""

    def __init__(self, service: Service, credentials: Credentials, limit: int) -> None:
        """Run at most `limit` requests at a time. A user may run a quarter of `limit` or 8, whichever is greater."""
        self._service = service
        self._credentials = credentials
        self.requests = RequestQuota(limit)
        self.removals = 0
        """The number of completed requests that removed something. Earlier answers may contain the removed data."""

    async def answer(self, credential: Credential, request: Request) -> bytes:
        """Return the encoded reply, which contains any error as a fault. Never raises."""
        verb = request.method if request.method in BY_NAME else "unknown"
        with server_span("door", verb, request.traceparent, may_begin=True) as span:
            reply = await self._answer(credential, request)
            if span.is_recorded and (fault := fault_in(reply)) is not None:
                span.fail(fault.code)
            return reply

    async def _answer(self, credential: Credential, request: Request) -> bytes:
        try:
            principal = self.principal(credential)
            with self.requests.slot(principal):
                return await self._service.handle(permitted(request, principal), principal)
        except MemoryAgentError as error:
            return encode_fault(error)
        except Exception:
            log.exception("request.failed")
            return encode_fault(MemoryAgentError("internal error; see the daemon's log for the traceback"))
        finally:
            self.removals += request.method in _REMOVING

    def principal(self, credential: Credential) -> Principal:
        if credential.curve_key is not None:
            return self._credentials.of_curve(credential.curve_key)
        return self._credentials.of_token(credential.token.encode())


def scope_of(name: str) -> Scope:
    verb = BY_NAME.get(name)
    return Scope.ADMIN if verb is None or verb.scope is None else verb.scope


def permitted(request: Request, principal: Principal) -> Request:
    """Check that the principal may send the request; return it with its user filled in.

    `ScopeMissingError` and `UserNotAllowedError` do not reveal whether the user exists. Raises `InvalidInputError`,
    too.
    """
    user_id = request.user_id or principal.user_id or DEFAULT_USER
    _check(request, principal, user_id)
    return msgspec.structs.replace(request, user_id=user_id)


def _check(request: Request, principal: Principal, user_id: str) -> None:
    verb, scope = BY_NAME.get(request.method), scope_of(request.method)
    if verb is None or verb.is_inner or verb.about == "daemon":
        principal.require(scope, None)
    elif verb.about == "user":
        principal.require(scope, user_id)
    else:
        if scope not in principal.scopes:
            raise ScopeMissingError(scope.value, principal.key_id)
        for named in decode(request.params, verb.params).users:
            principal.require(scope, named)
