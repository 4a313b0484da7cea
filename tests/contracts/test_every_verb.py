"""Test that every verb has the same signature, results and errors when embedded and in every client."""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "memory_agent"))

from http_caller import HttpCaller, HttpMethods
from served_gateway import Served, gateway_without_ray
from served_host import absent_embedder
from verb_examples import BAD, BAD_OF_DAEMON, Ask, Story

from memory_agent import ActorMemoryProvider, AsyncMemoryClient, Memory, MemoryClient, MemoryProvider
from memory_agent.client import in_ray
from memory_agent.daemon.service import Service
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.knowledge import Knowledge
from memory_agent.verbs.protocol import HostAddress
from memory_agent.verbs.table import BY_NAME, VERBS, Verb
from ops.documents import clients
from relay import BrokerSettings, RelaySettings

PUBLIC = [verb for verb in VERBS if not verb.is_inner]
EMBEDDED = [verb for verb in PUBLIC if verb.is_embedded]
CLIENTS = (MemoryClient, AsyncMemoryClient, ActorMemoryProvider)
SOON = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.1))  # an erasure waits for the next upkeep


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEmbedder]:
    with absent_embedder(tmp_path_factory.mktemp("embedder")) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def served(embedder: RemoteEmbedder) -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="verbs-") as folder,
        gateway_without_ray(Path(folder), embedder, SOON) as served,
    ):
        yield served


@pytest.fixture(scope="module")
def asks(
    served: Served, embedder: RemoteEmbedder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Ask]]:
    """For each interface, keyed by its user id, a function that calls a method through it."""

    def ask_host(address: HostAddress, user_id: str, method: str, params: bytes, deadline_ms: float) -> bytes:
        return served.host.call_awake(user_id, method, params, deadline_ms)

    own: dict[str, Any] = {"data_dir": served.data_dir, "endpoint": served.gateway}
    loop = asyncio.new_event_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_ray, "ask_host", ask_host)
        folder = tmp_path_factory.mktemp("embedded")
        knowledge = Knowledge.open(folder / "shared", embedder=embedder)
        memory = Memory.open(folder / "user-ann", embedder=embedder, shared=knowledge)
        client, provider = MemoryClient("user-carl", **own), ActorMemoryProvider("user-rita", **own)
        awaiting = AsyncMemoryClient("user-ada", **own)
        caller = HttpCaller(served.http, served.token)

        def awaited(method: str, *arguments: Any, **named: Any) -> Any:
            return loop.run_until_complete(attrgetter(method)(awaiting)(*arguments, **named))

        yield {
            "user-ann": _asking(memory),
            "user-carl": _asking(client),
            "user-ada": awaited,
            "user-rita": _asking(provider),
            "user-hugo": _asking(HttpMethods(caller, "user-hugo")),
        }
        loop.run_until_complete(awaiting.close())
        for one in (memory, knowledge, client, provider, caller):
            one.close()
    loop.close()


def _asking(owner: object) -> Ask:
    return lambda method, *arguments, **named: attrgetter(method)(owner)(*arguments, **named)


@pytest.fixture(scope="module")
def stories(asks: dict[str, Ask]) -> dict[str, list[tuple[str, Any]]]:
    """The results of the story, by user. Clients then call the verbs that only a daemon handles."""
    told = {}
    for user_id, ask in asks.items():
        story = Story(ask)
        story.tell()
        if user_id != "user-ann":
            story.tell_of_daemon(user_id)
        told[user_id] = story.normal(user_id)
    return told


def test_every_verb_has_an_example(stories: dict[str, list[tuple[str, Any]]]) -> None:
    assert {method for method, _ in stories["user-ann"]} == {verb.method for verb in EMBEDDED}
    assert {method for method, _ in stories["user-carl"]} == {verb.method for verb in PUBLIC}
    refused = {method for method, _, _ in BAD + BAD_OF_DAEMON}
    takes_nothing = {verb.method for verb in PUBLIC if not verb.params.__struct_fields__}
    cannot_be_wrong = {"erasure.erase_expired", "erasure.erase_user"}
    assert refused == {verb.method for verb in PUBLIC} - takes_nothing - cannot_be_wrong


@pytest.mark.parametrize("user_id", ["user-carl", "user-ada", "user-rita", "user-hugo"])
def test_every_verb_answers_the_same_embedded_and_through_every_client(
    stories: dict[str, list[tuple[str, Any]]], user_id: str
) -> None:
    embedded, of_client = stories["user-ann"], stories[user_id]
    for own, theirs in zip(embedded, of_client, strict=False):
        assert own == theirs
    for own, theirs in zip(stories["user-carl"][len(embedded) :], of_client[len(embedded) :], strict=True):
        assert own == theirs


@pytest.mark.parametrize(("method", "arguments", "field"), BAD, ids=lambda value: str(value)[:40])
def test_every_door_refuses_the_same_arguments(
    asks: dict[str, Ask], method: str, arguments: dict[str, Any], field: str
) -> None:
    for user_id, ask in asks.items():
        if user_id == "user-hugo" and "nan" in repr(arguments):
            continue  # JSON has no NaN, but `test_http_requests` sends one
        with pytest.raises(InvalidInputError) as caught:
            ask(method, **arguments)
        assert caught.value.field == field, user_id


@pytest.mark.parametrize(("method", "arguments", "field"), BAD_OF_DAEMON)
def test_every_client_refuses_the_same_arguments(
    asks: dict[str, Ask], method: str, arguments: dict[str, Any], field: str
) -> None:
    for user_id in ("user-carl", "user-ada", "user-rita", "user-hugo"):
        with pytest.raises(InvalidInputError) as caught:
            asks[user_id](method, **arguments)
        assert caught.value.field == field, user_id


def test_a_refusal_of_the_daemons_own_request_by_the_relay_is_retryable_unavailability(asks: dict[str, Ask]) -> None:
    for user_id in ("user-carl", "user-ada", "user-rita", "user-hugo"):
        with pytest.raises(UnavailableError, match="relay: after: -1"):
            asks[user_id]("quarantined", after=-1)


def method_of(owner: type, verb: Verb) -> Callable[..., Any]:
    """Return a class's function for a verb. Namespaces are attributes of instances, not of the class."""
    space, _, name = verb.method.rpartition(".")
    if not space:
        return getattr(owner, name)  # type: ignore[no-any-return]
    if owner is Memory:
        return getattr(get_type_hints(Memory)[space], name)  # type: ignore[no-any-return]
    made = owner.__new__(owner)
    methods = next(one for one in owner.__mro__ if one.__name__ in ("MemoryMethods", "AsyncMemoryMethods"))
    methods.__init__(made, lambda *_, **__: None)  # type: ignore[misc]
    return getattr(type(getattr(made, space)), name)  # type: ignore[no-any-return]


def parameters(function: Callable[..., Any]) -> list[tuple[str, object, object, object]]:
    """Return the parameters of a method, except `now`, which only an embedded memory accepts."""
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default, one.annotation) for one in found if one.name != "now"]


@pytest.mark.parametrize("verb", PUBLIC, ids=lambda verb: verb.method)
def test_every_door_has_one_signature(verb: Verb) -> None:
    declared = clients.declared(verb)
    documented = inspect.getdoc(declared) or ""
    assert get_type_hints(declared)["return"] == (type(None) if verb.result is None else verb.result)
    for owner in CLIENTS:
        function = method_of(owner, verb)
        assert parameters(function) == parameters(declared), owner
        assert inspect.signature(function).return_annotation == inspect.signature(declared).return_annotation
        is_of_example = owner is not AsyncMemoryClient and not verb.is_embedded  # the example is for a blocking client
        described = documented if is_of_example else documented.partition("\n\n>>> ")[0]
        assert inspect.getdoc(function) == described, owner
        assert inspect.iscoroutinefunction(function) == (owner is AsyncMemoryClient)


def test_verbs_of_one_wire_name_have_the_same_scope_and_repeatability() -> None:
    """Three methods erase, but all of them are called `erase` in the gateway and the service."""
    for verb in VERBS:
        first = BY_NAME[verb.name]
        assert (verb.scope, verb.about, verb.repeat) == (first.scope, first.about, first.repeat)
        assert issubclass(verb.params, first.params)
        assert verb.params.__struct_fields__ == first.params.__struct_fields__
        assert (verb.answered_by == "memory") == (first.answered_by == "memory")
        assert (verb.answered_by == "memory") != hasattr(Service, f"answer_{verb.name}")


def test_every_method_of_a_door_is_a_verb() -> None:
    methods = {verb.method for verb in PUBLIC}
    for owner in CLIENTS:
        made = {name for name, _ in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")}
        assert made - methods <= {"blocks", "close", "send", "shared_changes"}, owner


def test_an_embedded_memory_and_every_blocking_client_is_a_memory_provider(
    served: Served, embedder: RemoteEmbedder, tmp_path: Path
) -> None:
    with (
        Memory.open(tmp_path / "user-ann", embedder=embedder) as memory,
        MemoryClient(data_dir=served.data_dir) as client,
    ):
        assert isinstance(memory, MemoryProvider)
        assert isinstance(client, MemoryProvider)
        assert isinstance(ActorMemoryProvider(data_dir=served.data_dir), MemoryProvider)
