"""The HTTP routes: each reads a request, passes it to the reception, and writes the response.

The caller's key is checked before the body is read. A refusal that leaves the body unread closes the connection.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from memory_agent.doors.bodies import IDEMPOTENCY_KEY, PUBLIC, decode_body, read_request, request_of
from memory_agent.doors.http.asgi import Asgi, Exchange, Receive, Send
from memory_agent.doors.http.guard import Place, is_own_site, refuse_names
from memory_agent.doors.http.hooks import HookCall, HookDoor
from memory_agent.doors.http.openapi import describe_door
from memory_agent.doors.http.page.files import answer_file
from memory_agent.doors.http.page.sessions import PAGE_KEY, Secrets, Sessions, SignedIn, SignIn, Ticket
from memory_agent.doors.http.problems import answered
from memory_agent.doors.http.publishing import EventsRequest, Intake, publish_events
from memory_agent.doors.http.streams import (
    EVENT_STREAM,
    JournalWatch,
    Stream,
    Take,
    Work,
    blocks_for,
    events_of,
    read_place,
)
from memory_agent.doors.mcp.door import McpDoor
from memory_agent.doors.mcp.introduction import TOOL_SETS
from memory_agent.doors.mcp.messages import MOST_BYTES
from memory_agent.doors.mcp.tools import Context
from memory_agent.doors.reception import Credential, Reception
from memory_agent.doors.request_quota import ByteQuota, RequestQuota
from memory_agent.errors import (
    InvalidInputError,
    MemoryAgentError,
    ProtocolError,
    UnauthorizedError,
    UnknownMethodError,
)
from memory_agent.records.memories import MemoryStats
from memory_agent.settings import HttpSettings
from memory_agent.tracing import receive_trace
from memory_agent.triggers.block import Wanted
from memory_agent.verbs import protocol
from memory_agent.verbs.params import OwnerParams, RebuildParams
from memory_agent.verbs.table import BY_NAME, Verb
from memory_agent.version import VERSION
from relay import SYSTEM_USER, Endpoints, MalformedEventError, Principal, RelayError, described, validate_user_id
from relay.log import log

PAGES = {
    "/docs": ("index.html", "text/html"),
    "/docs/page.js": ("page.js", "text/javascript"),
    "/docs/swagger-ui-bundle.js": ("swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": ("swagger-ui.css", "text/css"),
}
"""The documentation page: for each path, a file in `docs` and its media type."""
ALL_USERS = "*"
"""With a key for all users, this user id subscribes to the events of every user."""
HOOK, MCP = "/hook", "/mcp"
METRICS = "/metrics"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVENTS = "/v1/events"
_MOST_PUBLISHING = 64
_SIGN_IN_BYTES = 4096
_ANYBODY = Principal("", "", frozenset())
"""Sign-in bodies use this principal's quota, because their senders are not yet authenticated."""
_NOT_SIGNED_IN = (
    "cannot sign in: the key is unknown or was revoked, or the ticket was used or has expired; "
    "enter the token of a valid key, or run memory-agent open again"
)
_PREFIX = "/v1/"
_BEGINNING = msgspec.json.encode(
    {"docs": "/docs", "page": "/page/", "openapi": "/openapi.json", "verbs": f"POST {_PREFIX}VERB"}
)
_JSON = "application/json"
_LARGE_BYTES = 1 << 20
_PIECE_BYTES = 64 << 10
_DOCS = Path(__file__).with_name("docs")
_CSP = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"

T = TypeVar("T")


class Routes:
    """The request handlers of one server. Must be used from a single event loop."""

    def __init__(
        self,
        reception: Reception,
        relay: Endpoints,
        intake: Intake,
        watch: JournalWatch,
        sessions: Sessions,
        settings: HttpSettings,
        bodies_bytes: int,
    ) -> None:
        """Buffer at most `bodies_bytes` of request bodies, and as much of responses; a single body may be larger."""
        self._reception = reception
        self._mcp = McpDoor(reception)
        self._hooks = HookDoor(reception, intake)
        self._relay = relay
        self._intake = intake
        self._watch = watch
        self._sessions = sessions
        self._settings = settings
        self._bodies, self._answers = ByteQuota(bodies_bytes), ByteQuota(bodies_bytes)
        self.streams = RequestQuota(settings.streams)
        self._publishing = RequestQuota(_MOST_PUBLISHING)

    def routes(self) -> list[BaseRoute]:
        return [
            *(Route(_PREFIX + verb.name, partial(self.answer, verb=verb), methods=["POST"]) for verb in PUBLIC),
            _stream_route("blocks", self.follow_blocks),
            _stream_route("events", self.follow_events),
            Route(EVENTS, self.publish, methods=["POST"]),
            Route(MCP, self.answer_mcp, methods=["POST"]),
            Route(HOOK, self.answer_hook, methods=["POST"]),
            Route(METRICS, self.measure, methods=["GET"]),
            Route("/", _begin, methods=["GET"]),
            Route("/openapi.json", _describe, methods=["GET"]),
            *(Route(path, _documentation, methods=["GET"]) for path in PAGES),
            Route("/page", _to_page, methods=["GET"]),
            Route("/page/ticket", self.give_ticket, methods=["POST"]),
            Route("/page/session", self.sign_in, methods=["POST"]),
            Route("/page/session", self.show_session, methods=["GET"]),
            Route("/page/session", self.sign_out, methods=["DELETE"]),
            Route("/page/{name:path}", _page_file, methods=["GET"]),
        ]

    async def answer(self, request: Request, verb: Verb) -> Response:
        """Raises `InvalidInputError` for query parameters: a `user_id` there would be ignored."""
        for name in request.query_params:
            raise InvalidInputError(name, "must be in the request body, not in the URL")
        principal, credential = self._caller(request)
        async with self._body(request, principal) as body:
            read = partial(read_request, verb, body, credential.token, request.headers.get(IDEMPOTENCY_KEY))
            asked = await _off_loop(read, len(body))
            if _wants_stream(request):
                return await self._follow_work(principal, credential, verb, asked)
            content = await self._result(credential, verb, asked)
        if len(content) > _PIECE_BYTES:
            return _Held(content, self._answers, principal)
        return Response(content, media_type=_JSON)

    async def measure(self, request: Request) -> Response:
        asked = protocol.Request(method="metrics")
        text = protocol.decode_reply(await self._reception.answer(self._credential(request), asked), str)
        return Response(text, media_type=METRICS_TYPE)

    async def publish(self, request: Request) -> Response:
        principal, credential = self._caller(request)
        with self._publishing.slot(principal):
            async with self._body(request, principal) as body:
                asked = await _off_loop(partial(decode_body, body, EventsRequest), len(body))
                published = await publish_events(asked, principal, credential.token, self._intake)
            return Response(msgspec.json.encode(published), media_type=_JSON)

    async def answer_mcp(self, request: Request) -> Response:
        principal, credential = self._caller(request)
        context = _context(request)
        async with self._body(request, principal, MOST_BYTES) as body:
            reply = await self._mcp.reply(body, request.headers, context, credential)
        if len(reply.body) > _PIECE_BYTES:
            return _Held(reply.body, self._answers, principal)
        return Response(reply.body, reply.status, media_type=_JSON if reply.body else None)

    async def answer_hook(self, request: Request) -> Response:
        principal, credential = self._caller(request)
        call = HookCall.of(_query(request, set(HookCall.__struct_fields__)))
        with self._publishing.slot(principal):
            async with self._body(request, principal) as body:
                answered = await self._hooks.answer(body, call, principal, credential)
        return StreamingResponse(_only(answered.line), answered.status, media_type=_JSON)

    async def give_ticket(self, request: Request) -> Response:
        """Return a ticket for one browser sign-in, which uses the key of the request's bearer token."""
        credential = _bearer(request)
        principal = self._reception.principal(credential)
        ticket = await asyncio.to_thread(self._sessions.give_ticket, principal.key_id, credential.token, time.time())
        return Response(msgspec.json.encode(Ticket(ticket, user_id=principal.user_id)), media_type=_JSON)

    async def sign_in(self, request: Request) -> Response:
        _require_own_site(request)
        async with self._body(request, _ANYBODY, _SIGN_IN_BYTES) as body:
            given = decode_body(body, SignIn).token.strip()
        token = await asyncio.to_thread(self._sessions.take_ticket, given, time.time()) or given
        try:
            principal = self._reception.principal(Credential(token))
        except UnauthorizedError as error:
            raise UnauthorizedError(_NOT_SIGNED_IN) from error
        begun = await asyncio.to_thread(self._sessions.begin, principal.key_id, token, time.time())
        response = _signed_in(principal, begun.page_key)
        response.headers["set-cookie"] = self._sessions.set_cookie(begun.cookie)
        return response

    async def show_session(self, request: Request) -> Response:
        return _signed_in(self._reception.principal(self._credential(request)), request.headers.get(PAGE_KEY))

    async def sign_out(self, request: Request) -> Response:
        _require_own_site(request)
        await asyncio.to_thread(self._sessions.end, self._secrets(request))
        return Response(status_code=204, headers={"set-cookie": self._sessions.set_cookie("")})

    def _caller(self, request: Request) -> tuple[Principal, Credential]:
        credential = self._credential(request)
        return self._reception.principal(credential), credential

    def _credential(self, request: Request) -> Credential:
        """Return the request's bearer token, else the token of its page session, else "".

        Raises `UnauthorizedError` if the session is not valid, and `HTTPException` (403) for requests from other sites.
        """
        if "authorization" in request.headers or PAGE_KEY not in request.headers:
            return _bearer(request)
        _require_own_site(request)
        token = self._sessions.token(self._secrets(request), time.time())
        if token is None:
            raise UnauthorizedError("this browser is not signed in, or its session has ended: run memory-agent open")
        return Credential(token)

    def _secrets(self, request: Request) -> Secrets:
        cookie = request.cookies.get(self._sessions.cookie_name, "")
        return Secrets(cookie, request.headers.get(PAGE_KEY, ""))

    async def _result(self, credential: Credential, verb: Verb, asked: protocol.Request) -> bytes:
        reply = await self._reception.answer(credential, asked)
        return await _off_loop(partial(_as_json, reply, verb), len(reply))

    async def _follow_work(
        self, principal: Principal, credential: Credential, verb: Verb, asked: protocol.Request
    ) -> Response:
        """Respond with a stream, or with a problem and its status if the request fails within a second."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self.streams.slot(principal))
            work = Work(self._result(credential, verb, asked), self._settings.heartbeat_s)
            await work.raise_early()
            embeds = verb.name == "rebuild" and protocol.decode(asked.params, RebuildParams).vectors
            frames = work.frames(partial(self._waiting, credential, asked.user_id) if embeds else None)
            stack.push_async_callback(frames.aclose)
            return _Followed(frames, stack.pop_all())

    async def _waiting(self, credential: Credential, user_id: str) -> int:
        """Return how many of a user's memories have no vector."""
        asked = request_of(BY_NAME["stats"], {}, credential.token, user_id)
        stats = protocol.decode_reply(await self._reception.answer(credential, asked), MemoryStats)
        return int(stats.waiting)

    async def follow_blocks(self, request: Request) -> Response:
        known = _query(request, {"user_id", "role", "run", "session"})
        wanted = Wanted(*(known.get(name) for name in ("role", "run", "session")))
        principal = self._reception.principal(self._credential(request))
        user_id = _user_id(known.get("user_id"), principal)
        wanted.check(user_id)
        return await self._follow(request, principal, user_id, blocks_for(wanted), "block", wanted)

    async def follow_events(self, request: Request) -> Response:
        known = _query(request, {"user_id", "type"})
        principal = self._reception.principal(self._credential(request))
        everybody = known.get("user_id") == ALL_USERS
        user_id = None if everybody else _user_id(known.get("user_id"), principal)
        take = events_of(tuple(request.query_params.getlist("type")))
        return await self._follow(request, principal, user_id, take, "event")

    async def _follow(
        self,
        request: Request,
        principal: Principal,
        user_id: str | None,
        take: Take,
        name: str,
        wanted: Wanted | None = None,
    ) -> Response:
        after = read_place(request.headers.get("Last-Event-ID"))
        credential = self._credential(request)
        owner = None
        if wanted is not None and user_id == SYSTEM_USER:
            owner = partial(self._owner, credential, wanted)
        async with AsyncExitStack() as stack:
            stack.enter_context(self.streams.slot(principal))
            stream = Stream(self._relay, self._watch, credential.token, name, take, self._settings.heartbeat_s)
            stack.push_async_callback(stream.close)
            await stream.begin(user_id, after, owner)
            frames = stream.frames()
            stack.push_async_callback(frames.aclose)
            return _Followed(frames, stack.pop_all())

    async def _owner(self, credential: Credential, wanted: Wanted) -> str | None:
        """Return the owner of the requested run or session, or None while the owner is unknown. The user `system`
        receives the owner's blocks."""
        named = {"run_id": wanted.run} if wanted.run is not None else {"session_id": wanted.session}
        asked = protocol.Request(
            method="owner",
            token=credential.token,
            params=msgspec.Raw(protocol.encode_fields(OwnerParams.of(**named))),
        )
        owner: str | None = protocol.decode_reply(
            await self._reception.answer(credential, asked), BY_NAME["owner"].result
        )
        return owner

    @asynccontextmanager
    async def _body(self, request: Request, principal: Principal, most: int = sys.maxsize) -> AsyncIterator[bytes]:
        """Read a body of at most `most` bytes. Raises `HTTPException` (408, 413, 415) and `UnavailableError`."""
        body = bytearray()
        try:
            await self._read(request, principal, body, min(most, self._settings.body_bytes))
            if body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
                raise HTTPException(415, f"the body must be JSON, sent with Content-Type: {_JSON}")
            yield bytes(body)
        finally:
            self._bodies.release(principal, len(body))

    async def _read(self, request: Request, principal: Principal, body: bytearray, limit: int) -> None:
        timeout_s = self._settings.timeout_s
        _require_room(int(request.headers.get("content-length", "0")), limit)
        try:
            async with asyncio.timeout(timeout_s):
                async for part in request.stream():
                    _require_room(len(body) + len(part), limit)
                    self._bodies.take(principal, len(part), len(body))
                    body += part
        except TimeoutError as error:
            raise HTTPException(408, f"the body did not arrive within {timeout_s:g} s") from error


def _stream_route(name: str, follow: Callable[[Request], Awaitable[Response]]) -> Route:
    """A response to HEAD would never end."""
    route = Route(_PREFIX + name, follow, methods=["GET"])
    route.methods = {"GET"}
    return route


class _Held(Response):
    """A large response, sent in pieces and counted as buffered until its client has read it."""

    def __init__(self, content: bytes, quota: ByteQuota, principal: Principal) -> None:
        super().__init__(content, media_type=_JSON)
        self._quota = quota
        self._principal = principal
        quota.take(principal, len(content))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        content = memoryview(self.body)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for place in range(0, len(content), _PIECE_BYTES):
                piece = bytes(content[place : place + _PIECE_BYTES])
                more = place + _PIECE_BYTES < len(content)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._quota.release(self._principal, len(content))


class _Followed(StreamingResponse):
    """Closes its resources when the client disconnects, however that happens."""

    def __init__(self, frames: AsyncGenerator[bytes], resources: AsyncExitStack) -> None:
        super().__init__(frames, media_type=EVENT_STREAM, headers={"x-accel-buffering": "no"})
        self._resources = resources

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        async with self._resources:
            await super().__call__(scope, receive, send)


async def _only(content: Awaitable[bytes]) -> AsyncIterator[bytes]:
    yield await content


async def _off_loop(convert: Callable[[], T], size_bytes: int) -> T:
    """Call `convert`, in a thread if the data is large, so that other requests are not blocked."""
    return await asyncio.to_thread(convert) if size_bytes > _LARGE_BYTES else convert()


async def _begin(request: Request) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return await _to_page(request)
    return Response(_BEGINNING, media_type=_JSON)


async def _to_page(_: Request) -> Response:
    return RedirectResponse("/page/", 303)


async def _describe(_: Request) -> Response:
    return Response(_description(), media_type=_JSON)


async def _page_file(request: Request) -> Response:
    found = await asyncio.to_thread(answer_file, request.path_params["name"], request.headers.get("if-none-match", ""))
    if found is None:
        raise HTTPException(404)
    return Response(found.body, found.status, found.headers)


async def _documentation(request: Request) -> Response:
    name, media_type = PAGES[request.url.path]
    content = await asyncio.to_thread((_DOCS / name).read_bytes)
    return Response(content, media_type=media_type, headers={"content-security-policy": _CSP})


@cache
def _description() -> bytes:
    return msgspec.json.encode(describe_door())


def make_app(routes: list[BaseRoute], place: Place, hosts: tuple[str, ...]) -> Asgi:
    """Return the application: the routes, behind a check of the Host and Origin headers."""
    inner = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _refused,
            MemoryAgentError: _failed,
            RelayError: _failed,
            ClientDisconnect: _gone,
            Exception: _crashed,
        },
    )

    async def guarded(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        receive_trace(headers.get(b"traceparent", b"").decode("latin-1"))
        exchange = Exchange(headers, receive, send)
        refusal = refuse_names(place, hosts, *_names(headers))
        if refusal is None:
            with suppress(ClientDisconnect):
                await inner(scope, exchange.receive, exchange.send)
        else:
            status, reason = refusal
            await _problem(ProtocolError(reason), status)(scope, exchange.receive, exchange.send)

    return guarded


def _names(headers: dict[bytes, bytes]) -> tuple[str, str | None]:
    origin = headers.get(b"origin")
    return headers.get(b"host", b"").decode("latin-1"), None if origin is None else origin.decode("latin-1")


def _bearer(request: Request) -> Credential:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return Credential(token.strip() if scheme.lower() == "bearer" else "")


def _require_own_site(request: Request) -> None:
    if not is_own_site(request.headers.get("sec-fetch-site")):
        raise HTTPException(403, "requests from other sites are not allowed")


def _signed_in(principal: Principal, page_key: str | None) -> Response:
    described = SignedIn(principal.user_id, tuple(sorted(principal.scopes)), page_key, VERSION)
    return Response(msgspec.json.encode(described), media_type=_JSON)


def _wants_stream(request: Request) -> bool:
    """Only the first media type in `Accept` counts."""
    first = request.headers.get("accept", "").partition(",")[0]
    return first.partition(";")[0].strip().lower() == EVENT_STREAM


def _query(request: Request, names: set[str]) -> dict[str, str]:
    """Raises `InvalidInputError` for an unknown or empty parameter."""
    for name, value in request.query_params.multi_items():
        if name not in names:
            raise InvalidInputError(name, f"no such parameter; the parameters are: {', '.join(sorted(names))}")
        if not value:
            raise InvalidInputError(name, "must not be empty; omit it")
    return dict(request.query_params)


def _context(request: Request) -> Context:
    named = _query(request, set(Context.__struct_fields__))
    if named.get("tools", "standard") not in TOOL_SETS:
        raise InvalidInputError("tools", f"must be one of {', '.join(TOOL_SETS)}")
    return msgspec.convert(named, described(Context))


def _user_id(named: str | None, principal: Principal) -> str:
    try:
        return validate_user_id(named or principal.user_id or protocol.DEFAULT_USER)
    except MalformedEventError as error:
        raise InvalidInputError("user_id", error.reason) from error


def _require_room(size_bytes: int, limit: int) -> None:
    if size_bytes > limit:
        raise HTTPException(413, f"the body must have at most {limit} bytes")


def _as_json(reply: bytes, verb: Verb) -> bytes:
    """Raises the error that the reply contains."""
    return msgspec.json.encode(protocol.decode_reply(reply, verb.result))


def _problem(error: MemoryAgentError | RelayError, status: int | None = None) -> Response:
    described = answered(error, status)
    return Response(described.body, described.status, described.headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and request.url.path.startswith(_PREFIX):
        return _problem(UnknownMethodError(request.url.path.removeprefix(_PREFIX)))
    headers = dict(error.headers or {})
    reason = {
        404: "no such path; see /docs",
        405: f"this path accepts {headers.get('Allow')}; see /docs",
    }.get(error.status_code, error.detail)
    response = _problem(ProtocolError(reason), error.status_code)
    response.headers.update(headers)
    return response


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, MemoryAgentError | RelayError)
    return _problem(error)


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # no client reads it


async def _crashed(_: Request, error: Exception) -> Response:
    log.error("request.failed", exc_info=error)
    return _problem(MemoryAgentError("internal error; see the daemon's log for the traceback"))
