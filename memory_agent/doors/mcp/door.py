"""Answers MCP messages. Keeps no state between requests, so clients can continue after the daemon restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from memory_agent.doors.mcp.answers import answered, block_of_records, check_task, planning_prompt
from memory_agent.doors.mcp.introduction import complete, introduce
from memory_agent.doors.mcp.messages import (
    HEADER_MISMATCH,
    IDEMPOTENCY_HEADER,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    Message,
    RpcError,
    error_line,
    failed_call,
    is_stateless,
    read_message,
    result_line,
)
from memory_agent.doors.mcp.tools import BY_SET, PLANNED_RUNS, PROMPT, URI, Context, request_in
from memory_agent.doors.reception import Credential, Reception
from memory_agent.errors import InvalidInputError, MemoryAgentError
from memory_agent.records.memories import MemoryRecord
from memory_agent.tracing import receive_trace
from memory_agent.verbs import protocol
from memory_agent.verbs.table import BY_NAME, Verb

_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""The HTTP status of each error. In protocol versions with a handshake, it is 200 if the message could be parsed."""
_LARGE_BYTES = 1 << 18


class Reply(NamedTuple):
    """A notification gets status 202 and no body."""

    status: int
    body: bytes = b""


class McpDoor:
    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def reply(self, body: bytes, headers: Mapping[str, str], context: Context, credential: Credential) -> Reply:
        """Answer one message. Never raises: errors become part of the reply."""
        has_status = True
        try:
            message = read_message(body)
            receive_trace(message.meta.get("traceparent"))
            has_status = stateless = is_stateless(message, headers)
            if isinstance(message.id, msgspec.UnsetType):
                return Reply(202)
            if context.session_id is None and message.session is not None:
                context = msgspec.structs.replace(context, session_id=message.session)
            try:
                result = introduce(message, context.tools, stateless)
                if result is None:
                    result = complete(
                        await self._answer(message, context, credential, headers.get(IDEMPOTENCY_HEADER)),
                        stateless,
                        0 if message.method == "resources/read" else None,
                    )
            except RpcError as error:
                raise RpcError(error.code, error.message, error.data, message.id) from error
            return Reply(200, result_line(message.id, result))
        except RpcError as error:
            return Reply(_STATUS.get(error.code, 200) if has_status else 200, error_line(error))

    async def _answer(
        self, message: Message, context: Context, credential: Credential, key: str | None
    ) -> dict[str, Any]:
        match message.method:
            case "tools/call":
                return await self._call(message, context, credential, key)
            case "resources/read":
                return await self._read(message, context, credential)
        assert message.method == "prompts/get", message.method
        return await self._prompt(message, context, credential)

    async def _call(
        self, message: Message, context: Context, credential: Credential, key: str | None
    ) -> dict[str, Any]:
        tools, name = BY_SET[context.tools], message.params.get("name")
        tool = tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool {str(name)[:64]!r}; the tools are: {', '.join(tools)}")
        try:
            arguments = msgspec.json.encode(message.params.get("arguments") or {})
            request = tool.request(arguments, context, credential.token, key)
            reply = await self._reception.answer(credential, request)
            show = partial(_shown, tool.verb, reply, request)
            return await asyncio.to_thread(show) if len(reply) > _LARGE_BYTES else show()
        except MemoryAgentError as error:
            return failed_call(error.code, str(error), error.retryable)

    async def _read(self, message: Message, context: Context, credential: Credential) -> dict[str, Any]:
        uri = message.params.get("uri")
        if not isinstance(uri, str):
            raise RpcError(INVALID_PARAMS, "uri must be a string")
        records: list[MemoryRecord] = []
        if uri.startswith(URI):
            records = await self._ask("get", {"ids": (uri.removeprefix(URI),)}, context, credential)
        if not records:
            code = INVALID_PARAMS if VERSION_KEY in message.meta else RESOURCE_NOT_FOUND
            raise RpcError(code, f"no such memory; the URI of a memory is {URI}ID", {"uri": uri})
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": block_of_records(records)}]}

    async def _prompt(self, message: Message, context: Context, credential: Credential) -> dict[str, Any]:
        name = message.params.get("name")
        if name != PROMPT:
            raise RpcError(INVALID_PARAMS, f"unknown prompt {str(name)[:64]!r}; the only prompt is {PROMPT}")
        try:
            task = check_task(message.params.get("arguments"))
        except InvalidInputError as error:
            raise RpcError(INVALID_PARAMS, str(error)) from error
        asked = {
            "query": task,
            "filter": context.of_project(None),
            "profile": "before_planning",
            "runs": PLANNED_RUNS,
        }
        text = planning_prompt(task, await self._ask("recall", asked, context, credential))
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    async def _ask(self, name: str, fields: Mapping[str, Any], context: Context, credential: Credential) -> Any:
        verb = BY_NAME[name]
        try:
            asked = request_in(context, verb, fields, credential.token)
            return protocol.decode_reply(await self._reception.answer(credential, asked), verb.result)
        except MemoryAgentError as error:
            code = INVALID_PARAMS if isinstance(error, InvalidInputError) else INTERNAL_ERROR
            data = {"code": error.code, "retryable": error.retryable}
            raise RpcError(code, f"{error.code}: {error}", data) from error


def _shown(verb: Verb, reply: bytes, request: protocol.Request) -> dict[str, Any]:
    """Raises the error that the reply contains."""
    return answered(verb.name, protocol.decode_reply(reply, verb.result), msgspec.msgpack.decode(request.params))
