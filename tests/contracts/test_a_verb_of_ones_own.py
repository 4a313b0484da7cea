"""Test that one table row and one method suffice to add a verb to every interface and client."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "memory_agent"))

from served_gateway import Served, gateway_without_ray
from served_host import absent_embedder

from memory_agent import ActorMemoryProvider, AsyncMemoryClient, Memory, MemoryClient
from memory_agent.client import in_ray
from memory_agent.client.async_methods import awaited
from memory_agent.errors import InvalidInputError, ScopeMissingError
from memory_agent.memory import Care
from memory_agent.records.memories import MemoryRecord
from memory_agent.storage.folders import known_users
from memory_agent.verbs.params import Params
from memory_agent.verbs.protocol import HostAddress
from memory_agent.verbs.table import BY_METHOD, BY_NAME, VERBS, Verb
from ops.documents.clients import source
from relay import Scope, create_key


class CountParams(Params, frozen=True, kw_only=True):
    """Parameters of `care.count`."""

    words: tuple[str, ...]
    at_least: int = 1


ROW = Verb(
    "count_words", "care.count", CountParams, int, "Count memories by their words.", scope=Scope.RECALL, repeat="read"
)


def count(self: Care, words: list[str], *, at_least: int = 1) -> int:
    """Return how many memories contain at least this many of the words."""
    with self._in_use(), self._archive.store.snapshot() as snapshot:
        texts: list[MemoryRecord] = [record for _, record in snapshot.scan()]
    return sum(sum(word in record.text for word in words) >= at_least for record in texts)


class Asking:
    """Sends the calls of a generated class."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask


@pytest.fixture(scope="module", autouse=True)
def _one_row_and_one_method() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Care, "count", count, raising=False)
        patch.setitem(BY_NAME, ROW.name, ROW)
        patch.setitem(BY_METHOD, ROW.method, ROW)
        yield


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="own-") as folder:
        data_dir = Path(folder)
        with absent_embedder(data_dir) as embedder, gateway_without_ray(data_dir, embedder) as served:
            yield served


@pytest.fixture(scope="module")
def doors(served: Served) -> Iterator[dict[str, Any]]:
    """Clients with methods generated from the extended table, instead of the package's methods."""

    def ask_host(_: HostAddress, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        return served.host.call_awake(user_id, method, params, deadline_ms)

    written: dict[str, Any] = {}
    exec(source((*VERBS, ROW)), written)
    own: dict[str, Any] = {"data_dir": served.data_dir, "endpoint": served.gateway}
    clients: dict[str, Any] = {
        "blocking": MemoryClient("alice", **own),
        "awaiting": AsyncMemoryClient("alice", **own),
        "in ray": ActorMemoryProvider("alice", **own),
    }
    clients["blocking"].remember("the proxy restarts at night")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_ray, "ask_host", ask_host)
        for name, client in clients.items():
            care = written["CareProvider"]
            counted = {"count": awaited(care.count)} if name == "awaiting" else {}
            client.care = type("CareMethods", (Asking, care), counted)(client._ask)
        yield clients
        clients["blocking"].close()
        clients["in ray"].close()


@pytest.mark.parametrize("name", ["blocking", "awaiting", "in ray"])
def test_a_verb_of_ones_own_is_answered_through_every_client(doors: dict[str, Any], name: str) -> None:
    async def scenario() -> tuple[int, int]:
        async with doors[name] as client:
            return await client.care.count(["proxy", "night"], at_least=2), await client.care.count(["lunch"])

    if name == "awaiting":
        assert asyncio.run(scenario()) == (1, 0)
        return
    client = doors[name]
    assert (client.care.count(["proxy", "night"], at_least=2), client.care.count(["lunch"])) == (1, 0)
    with pytest.raises(InvalidInputError, match="words"):
        client.care.count("proxy")


def test_an_embedded_memory_has_it_by_its_method(tmp_path: Path) -> None:
    with absent_embedder(tmp_path) as embedder, Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        memory.remember("the proxy restarts at night")
        assert memory.care.count(["proxy"]) == 1  # type: ignore[attr-defined]


def test_its_row_says_which_keys_may_ask_and_that_an_absent_user_is_not_woken(
    served: Served, doors: dict[str, Any]
) -> None:
    call = ROW.call({"words": ["proxy"]})
    writes = create_key(served.data_dir, "writes", "alice", frozenset({Scope.PUBLISH}))
    reads = create_key(served.data_dir, "reads", "alice", frozenset({Scope.RECALL}))
    with MemoryClient("alice", endpoint=served.gateway, token=writes.token) as client, pytest.raises(ScopeMissingError):
        client.send(call)
    with MemoryClient("alice", endpoint=served.gateway, token=reads.token) as client:
        assert client.send(call) == 1
    with MemoryClient("alcie", endpoint=served.gateway, data_dir=served.data_dir) as client:
        assert client.send(call) == 0
    assert "alcie" not in known_users(served.data_dir)


def test_its_parameters_are_encoded_like_those_of_other_verbs(doors: dict[str, Any]) -> None:
    encoded = msgspec.msgpack.decode(ROW.call({"words": ("a", "b")}).encode("alice", "t"))
    assert encoded["params"] == {"words": ["a", "b"]}
