"""JSON-RPC 2.0 messages of the Model Context Protocol, and the differences between its versions. Pure.

Versions up to 2025-11-25 begin with `initialize` (a handshake). From 2026-07-28 on, the protocol is stateless: each
request contains its version in `params._meta`. Over HTTP, the headers repeat its method and name. Imports only msgspec,
because `memory-agent mcp` must start fast.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from relay import described

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS = ("2026-07-28",)

MOST_BYTES = 1 << 20
"""Maximum message size. The limit bounds the time that the daemon's event loop spends on decoding a message; messages
that a model writes are far smaller.
"""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

_META = "io.modelcontextprotocol/"
VERSION_KEY = f"{_META}protocolVersion"
CAPABILITIES_KEY = f"{_META}clientCapabilities"
SERVER_KEY = f"{_META}serverInfo"

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
IDEMPOTENCY_HEADER = "idempotency-key"
"""An extension of the protocol: two calls with the same key count as one call, which is executed once."""
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The methods that need the memory. For each, the parameter whose value the header `Mcp-Name` repeats."""
_ENCODED, _END = "=?base64?", "?="

_VERSION_MEMBER = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID_MEMBER = rb'"id"\s*:\s*(-?[0-9]+|"(?:[^"\\]|\\.)*")'
_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION_MEMBER + rb"\s*,\s*)?" + _ID_MEMBER + rb"\s*[,}]")
_LAST = re.compile(rb"[,{]\s*" + _ID_MEMBER + rb"\s*(?:,\s*" + _VERSION_MEMBER + rb"\s*)?\}\s*\Z")
_ID_BYTES = 512

_SESSION = re.compile(r"[\w.:-]{1,128}")

Id = str | int


class Message(msgspec.Struct, frozen=True):
    """A request, or a notification (a message without an id)."""

    jsonrpc: Literal["2.0"]
    method: str
    id: Id | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, Any] = {}

    @property
    def meta(self) -> Mapping[str, Any]:
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def session(self) -> str | None:
        """The session id that the client (not the model) sends with each request, as Codex does, or None."""
        named = self.meta.get("sessionId")
        return named if isinstance(named, str) and _SESSION.fullmatch(named) else None

    @property
    def headers(self) -> dict[str, str]:
        version = self.meta.get(VERSION_KEY)
        if not isinstance(version, str) or not version.isascii() or not version.isprintable():
            return {}
        name = {NAME_HEADER: header_value(self.named)} if isinstance(self.named, str) else {}
        return {VERSION_HEADER: version, METHOD_HEADER: header_value(self.method), **name}

    @property
    def named(self) -> Any:
        """The tool, prompt or resource that the message names, for the `Mcp-Name` header."""
        parameter = NAMED.get(self.method)
        return None if parameter is None else self.params.get(parameter)


class RpcError(Exception):
    """A protocol error. `id` is the request's id, or None if it could not be read."""

    def __init__(self, code: int, message: str, data: Any = None, id: Id | None = None) -> None:
        super().__init__(code, message, data, id)
        self.code = code
        self.message = message
        self.data = data
        self.id = id


class _Identified(msgspec.Struct):
    id: Id | None = None


_reader = msgspec.json.Decoder(described(Message))


def read_message(line: bytes) -> Message:
    try:
        return _reader.decode(line)
    except msgspec.ValidationError as error:
        reason = "batches are not supported" if line.lstrip()[:1] == b"[" else str(error)
        raise RpcError(INVALID_REQUEST, f"not a JSON-RPC 2.0 request: {reason}", id=_id_of(line)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RpcError(PARSE_ERROR, f"not JSON: {error}", id=id_within(line, line)) from error


def id_within(start: bytes, end: bytes) -> Id | None:
    """Return the id in the first or last bytes of a line that cannot be decoded, or None."""
    found = _FIRST.match(start[:_ID_BYTES]) or _LAST.search(end[-_ID_BYTES:])
    if found is not None:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            id: Id = msgspec.json.decode(found[1], type=described(Id))
            return id
    return None


def is_stateless(message: Message, headers: Mapping[str, str] | None) -> bool:
    """Return whether the message's protocol version has no handshake. Raises `RpcError` if it contradicts its headers.

    Header names are in lower case; None means a transport without headers.
    """
    named = None if headers is None else headers.get(VERSION_HEADER)
    if VERSION_KEY not in message.meta and (named is None or named in HANDSHAKE_VERSIONS):
        return False
    if message.id is msgspec.UNSET:
        return True
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in message.meta]
    if missing:
        raise _refusal(message, INVALID_PARAMS, f"params._meta does not contain {', '.join(missing)}")
    version = message.meta[VERSION_KEY]
    if headers is not None:
        _check_headers(message, version, headers)
    if not isinstance(version, str):
        raise _refusal(message, INVALID_PARAMS, f"{VERSION_KEY} must be a string")
    if version not in STATELESS_VERSIONS:
        data = {"supported": list(STATELESS_VERSIONS), "requested": version}
        raise _refusal(message, UNSUPPORTED_VERSION, f"unsupported protocol version {version[:32]}", data)
    return True


def header_value(text: str) -> str:
    """Return a string as a header value, encoded if it cannot be sent unchanged."""
    is_plain = text.isascii() and text.isprintable() and text == text.strip() and not text.startswith(_ENCODED)
    return text if is_plain else f"{_ENCODED}{b64encode(text.encode(errors='replace')).decode()}{_END}"


def result_line(id: Id, result: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "result": result})


def error_line(error: RpcError) -> bytes:
    described = {"code": error.code, "message": error.message}
    if error.data is not None:
        described["data"] = error.data
    return msgspec.json.encode({"jsonrpc": "2.0", "id": error.id, "error": described})


def failed_call(code: str, reason: str, retryable: bool) -> dict[str, Any]:
    """Return the result of a failed tool call, as text for a model and as fields."""
    advice = " (the same call may succeed later)" if retryable else ""
    text = f"error {code}: {reason}{advice}"
    fields = {"text": text, "code": code, "retryable": retryable}
    return {"content": [{"type": "text", "text": text}], "structuredContent": fields, "isError": True}


def _check_headers(message: Message, version: Any, headers: Mapping[str, str]) -> None:
    expected = {VERSION_HEADER: version, METHOD_HEADER: message.method}
    if message.named is not None:
        expected[NAME_HEADER] = message.named
    for name, value in expected.items():
        if _decoded(headers.get(name)) != value:
            raise _refusal(message, HEADER_MISMATCH, f"the header {name} does not match the body")


def _decoded(value: str | None) -> str | None:
    if value is None or not (value.startswith(_ENCODED) and value.endswith(_END)):
        return value
    try:
        return b64decode(value[len(_ENCODED) : -len(_END)], validate=True).decode()
    except (Base64Error, ValueError):
        return None


def _refusal(message: Message, code: int, reason: str, data: Any = None) -> RpcError:
    return RpcError(code, reason, data, None if message.id is msgspec.UNSET else message.id)


def _id_of(line: bytes) -> Id | None:
    try:
        return msgspec.json.decode(line, type=described(_Identified)).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return id_within(line, line)
