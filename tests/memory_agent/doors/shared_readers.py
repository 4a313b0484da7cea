"""Reads shared items through each interface, by every available path."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from click.testing import CliRunner
from http_caller import HttpCaller

from memory_agent import Memory
from memory_agent.cli.group import cli
from memory_agent.client.methods import MemoryMethods
from memory_agent.errors import InvalidInputError
from memory_agent.layout import TOKEN_VARIABLE
from memory_agent.records.memories import Tier

QUESTION = "what does staging need?"
T = TypeVar("T")


class Reader(Protocol):
    """A caller of an interface. Paths that the interface does not offer return None; refusals raise `RefusedError`."""

    def found(self) -> set[str]: ...
    def recalled(self, *tiers: Tier) -> set[str]: ...
    def own(self) -> set[str] | None: ...
    def got(self, item_id: str) -> bool | None: ...
    def fetched(self, item_id: str) -> bytes | None: ...
    def rated(self, item_id: str) -> object: ...


class RefusedError(Exception):
    """The interface refused the request."""


class ByMethods:
    """Reads through a memory in this process, or through a client."""

    def __init__(self, caller: Memory | MemoryMethods) -> None:
        self._caller = caller

    def found(self) -> set[str]:
        return {one.item.id for one in self._caller.shared.search(QUESTION, 100, min_relevance=0.0)}

    def recalled(self, *tiers: Tier) -> set[str]:
        result = self._caller.recall(QUESTION, 50, tiers=tiers, min_relevance=0.0, deadline_ms=30_000.0)
        assert result.degraded == ()
        return {one.record.id for one in result.memories}

    def own(self) -> set[str]:
        return {one.id for one in self._caller.shared.published()}

    def got(self, item_id: str) -> bool:
        return bool(self._caller.get([item_id]))

    def fetched(self, item_id: str) -> bytes:
        return self._answered(lambda: self._caller.shared.attachment(item_id).data)

    def rated(self, item_id: str) -> object:
        return self._answered(lambda: self._caller.shared.rate(item_id, 1.0))

    def _answered(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except InvalidInputError as error:
            raise RefusedError(str(error)) from error


class ByTools:
    """Reads through MCP, which has no tools for attachments or the caller's own items."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def found(self) -> set[str]:
        return {one["id"] for one in self._call("search_shared", query=QUESTION, top_k=100)["items"]}

    def recalled(self, *tiers: Tier) -> set[str]:
        answer: dict[str, Any] = {"degraded": ["at first"]}
        while answer["degraded"]:  # the deadline is fixed, and a busy machine misses it
            answer = self._call("recall", query=QUESTION, tiers=tiers, min_relevance=0.0, top_k=50)
        return {one["id"] for one in answer["memories"]}

    def own(self) -> None:
        return None

    def got(self, item_id: str) -> bool:
        return bool(self._call("get", ids=[item_id])["ids"])

    def fetched(self, item_id: str) -> None:
        return None

    def rated(self, item_id: str) -> object:
        return self._call("rate_shared", item_id=item_id, rating=1)

    def _call(self, tool: str, **arguments: Any) -> Any:
        params = {"name": tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = self._caller.send("POST", "/mcp", json.dumps(body).encode()).json()["result"]["structuredContent"]
        if "code" in answer:
            raise RefusedError(answer["text"])
        return answer


class ByCommands:
    """Reads through the command line, either from a daemon, with a key, or directly from the files."""

    def __init__(self, token: str, *where: str) -> None:
        self._token = token
        self._where = where

    def found(self) -> set[str]:
        found = self._run("shared", "search", QUESTION, "--min-relevance", "0", "--top-k", "100")
        return {one["item"]["id"] for one in json.loads(found)}

    def recalled(self, *tiers: Tier) -> set[str]:
        words = [word for tier in tiers for word in ("--tier", tier)]
        found = self._run("recall", QUESTION, *words, "--min-relevance", "0", "--top-k", "50", "--deadline-ms", "30000")
        return {one["record"]["id"] for one in json.loads(found)["memories"]}

    def own(self) -> set[str]:
        return {one["id"] for one in json.loads(self._run("shared", "published"))}

    def got(self, item_id: str) -> None:
        return None

    def fetched(self, item_id: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            self._run("shared", "attachment", item_id, "--out", f"{folder}/file")
            return Path(folder, "file").read_bytes()

    def rated(self, item_id: str) -> object:
        return self._run("shared", "rate", item_id, "1")

    def _run(self, *words: str) -> str:
        done = CliRunner(env={TOKEN_VARIABLE: self._token}).invoke(cli, [*words, *self._where, "--json"])
        if done.exit_code:
            raise RefusedError(done.stderr)
        return str(done.stdout)
