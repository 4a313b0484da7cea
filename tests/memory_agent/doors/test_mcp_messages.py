"""Test MCP messages as bytes: validity, protocol version, and headers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.doors.mcp.introduction import INSTRUCTIONS, catalogue, introduce
from memory_agent.doors.mcp.messages import (
    CAPABILITIES_KEY,
    HANDSHAKE_VERSIONS,
    STATELESS_VERSIONS,
    VERSION_KEY,
    Message,
    RpcError,
    error_line,
    header_value,
    is_stateless,
    read_message,
)

STATELESS = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}


def message(method: str, meta: dict[str, Any] | None = None, **params: Any) -> Message:
    params |= {} if meta is None else {"_meta": meta}
    return read_message(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())


def refusal(line: bytes) -> RpcError:
    with pytest.raises(RpcError) as refused:
        read_message(line)
    return refused.value


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b'{"jsonrpc": "2.0", "method": "pi'])
def test_invalid_json_is_a_parse_error_without_an_id(line: bytes) -> None:
    error = refusal(line)
    assert (error.code, error.id) == (-32700, None)


NESTED = b'{"a":' * 200_000 + b"1" + b"}" * 200_000


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b'{"jsonrpc": "2.0", "id": 1, "method": "pi', 1),
        (b'{"jsonrpc":"2.0","id":-7,"method":"x","params":{"text":"half of an emoji: \\ud83d"}}', -7),
        (b'{"method":"x","params":{"text":"half of an emoji: \\ud83d"},"jsonrpc":"2.0","id":"a\\"b"}', 'a"b'),
        (b'{"method":"x","params":{"id":5},"x":"\\ud83d","id":12, "jsonrpc" : "2.0" }\n', 12),
        (b'{"method":"x","jsonrpc":"2.0","params":{"text":"\\ud83d","id":5}}', None),
        (b'{"params":{"text":"\\ud83d ,\\"id\\":5}', None),
        (b'{"id":"\\ud83d","method":"x"}', None),
        (b'{"id":01,"method":"x"}', None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": ' + NESTED + b"}", 1),
        (b'{"jsonrpc": "2.0", "method": "x", "params": ' + NESTED + b', "id": 2}', 2),
    ],
)
def test_an_unreadable_line_is_refused_with_the_id_at_either_end(line: bytes, id: object) -> None:
    error = refusal(line)
    assert (error.code, error.id) == (-32700, id)


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b"null", None),
        (b"6o", None),
        (b"[]", None),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', None),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "ping"}', 7),
        (b'{"jsonrpc": "2.0", "id": "a"}', "a"),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', 7),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": [1]}', 7),
        (b'{"jsonrpc": "2.0", "id": 7, "result": {}}', 7),
    ],
)
def test_json_that_is_not_a_request_is_refused_with_its_id(line: bytes, id: object) -> None:
    error = refusal(line)
    assert (error.code, error.id) == (-32600, id)
    assert json.loads(error_line(error))["id"] == id


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(line: bytes) -> None:
    with suppress(RpcError):
        assert read_message(line).jsonrpc == "2.0"


@given(st.text(max_size=50))
def test_any_text_survives_encoding_as_a_header(text: str) -> None:
    called = message("tools/call", STATELESS, name=text)
    assert all(value.isascii() and "\n" not in value for value in called.headers.values())
    assert is_stateless(called, called.headers)


def test_a_header_that_looks_encoded_is_encoded() -> None:
    assert header_value("=?base64?eA==?=").startswith("=?base64?PT")


@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, "1999-01-01", None, 5])
def test_the_handshake_agrees_on_a_version(version: object) -> None:
    said = introduce(message("initialize", protocolVersion=version), "standard", False)
    assert said is not None
    assert said["protocolVersion"] == (version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1])
    assert said["instructions"] == INSTRUCTIONS
    assert said["capabilities"].keys() == {"tools", "resources", "prompts"}


def test_the_kind_of_version_follows_from_message_and_headers() -> None:
    assert not is_stateless(message("tools/list"), None)
    assert not is_stateless(message("tools/list"), {})
    assert not is_stateless(message("tools/list"), {"mcp-protocol-version": "2025-06-18"})
    assert is_stateless(message("tools/list", STATELESS), None)


@pytest.mark.parametrize(
    ("meta", "headers", "code"),
    [
        (None, {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}, -32602),
        ({VERSION_KEY: "2026-07-28"}, {}, -32602),
        (STATELESS, {}, -32020),
        (STATELESS, {"mcp-protocol-version": "2025-06-18", "mcp-method": "tools/call", "mcp-name": "recall"}, -32020),
        (STATELESS, {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list", "mcp-name": "recall"}, -32020),
        (STATELESS, {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "forget"}, -32020),
        (STATELESS, {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}, -32020),
        (
            STATELESS,
            {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "=?base64?!?="},
            -32020,
        ),
        ({**STATELESS, VERSION_KEY: "2027-01-01"}, None, -32022),
        ({**STATELESS, VERSION_KEY: 5}, None, -32602),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(meta: Any, headers: Any, code: int) -> None:
    with pytest.raises(RpcError) as refused:
        is_stateless(message("tools/call", meta, name="recall"), headers)
    assert (refused.value.code, refused.value.id) == (code, 1)
    if code == -32022:
        assert refused.value.data == {"supported": list(STATELESS_VERSIONS), "requested": "2027-01-01"}


def test_lists_have_the_fields_that_their_version_requires() -> None:
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        then, now = (introduce(message(method), "standard", stateless) for stateless in (False, True))
        assert then is not None
        assert now is not None
        assert len(then) == 1
        assert {**now, **then} == now
        assert (now["resultType"], now["cacheScope"]) == ("complete", "private")
        assert now["ttlMs"] > 0
    assert introduce(message("tools/call"), "standard", True) is None
    with pytest.raises(RpcError, match="one page"):
        introduce(message("tools/list", cursor="x"), "standard", True)
    with pytest.raises(RpcError, match="not supported in this protocol version"):
        introduce(message("initialize"), "standard", True)


def test_each_set_of_tools_is_short() -> None:
    names = {name: [tool["name"] for tool in tools] for name, tools in catalogue()["tools"].items()}
    assert names == {
        "standard": [
            *("recall", "remember", "get", "feedback", "forget", "timeline", "search_shared"),
            *("get_shared", "rate_shared"),
        ],  # no tool publishes, because a recalled text could ask a model to publish
        "classic": ["search_memory", "extract_memory", "vector_memory_search", "vector_memory_write"],
    }
    assert all(len(json.dumps(tools)) < 6_200 for tools in catalogue()["tools"].values())
