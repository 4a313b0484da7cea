"""Test that every public Python method has an example in its docstring, and that the examples run as printed.

An example can use the names of its module, `NAMES`, and the names prepared for its class: `memory`, `publisher`, ...
"""

from __future__ import annotations

import doctest
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import structlog

from sona import Adaptation, Learner, Lesson

sys.path.insert(0, str(Path(__file__).parent.parent / "memory_agent"))

from served_gateway import gateway_without_ray

from memory_agent import Memory, MemoryClient
from memory_agent.client.methods import ErasureMethods, MemoryMethods
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.erasure.eraser import Erasure
from memory_agent.knowledge import Knowledge
from memory_agent.knowledge.store import SearchQuota
from memory_agent.knowledge.voters import groups_of
from memory_agent.memory import Care, Runs, Shared, Sona
from memory_agent.memory.browsing import Browsing
from memory_agent.memory.mentions import mentions
from memory_agent.recall.context import context_block
from memory_agent.rerankers import Judge
from memory_agent.settings import EmbedderSettings, RetentionRule, RetentionSettings, Settings, load_settings
from memory_agent.triggers.reactions import Triggers
from memory_agent.verbs.table import VERBS
from ops.documents.clients import declared
from relay import (
    Broker,
    BrokerSettings,
    EncryptionSettings,
    Erasable,
    Event,
    Journal,
    KeyRing,
    Masker,
    Origin,
    Publisher,
    RelaySettings,
    Subscriber,
    create_key,
    decode_event,
    encode_event,
    event_from_mapping,
    masked_kinds,
    matches,
    matches_any,
    open_key_ring,
    read_event,
    relay_endpoints,
    set_person,
)

Names = dict[str, Any]
World = Callable[[Path, Embedder], AbstractContextManager[Names]]

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)
TEXTS = ("Staging needs the VPN", "The deploy hangs", "Lunch is at noon")
EVENTS = [
    Event(event_id=f"e-{number}", event_type="user_input", timestamp=NOW, user_id="alice", payload={"text": text})
    for number, text in enumerate(TEXTS, 1)
]
NAMES: Names = {
    "EncryptionSettings": EncryptionSettings,
    "Erasable": Erasable,
    "Event": Event,
    "Memory": Memory,
    "Origin": Origin,
    "Path": Path,
    "Publisher": Publisher,
    "RetentionRule": RetentionRule,
    "RetentionSettings": RetentionSettings,
    "Settings": Settings,
    "UTC": UTC,
    "datetime": datetime,
    "encode_event": encode_event,
    "events": EVENTS,
    "load_settings": load_settings,
    "now": NOW,
    "read_event": read_event,
    "relay_endpoints": relay_endpoints,
    "timedelta": timedelta,
}
SOON = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.1))  # an erasure waits for the upkeep


@contextmanager
def a_memory(folder: Path, embedder: Embedder) -> Iterator[Names]:
    """An empty memory of `alice`, the store of shared items, a journal of her events, and a settings file."""
    (folder / "memory-agent.toml").write_text('[recall]\nmode = "hybrid"\n', encoding="utf-8")
    with (
        Knowledge.open(folder / "shared", embedder=embedder) as shared,
        Memory.open(folder / "alice", embedder=embedder, shared=shared) as memory,
        Journal.open(folder / "journal") as journal,
    ):
        journal.append(EVENTS, NOW)
        yield {"memory": memory, "journal": journal}


@contextmanager
def no_log() -> Iterator[None]:
    """Drop log lines, which an example would otherwise print."""

    def drop(*_: object) -> NoReturn:
        raise structlog.DropEvent

    was_configured, former = structlog.is_configured(), structlog.get_config()
    structlog.configure(processors=[drop])
    try:
        yield
    finally:
        structlog.configure(**former) if was_configured else structlog.reset_defaults()


@contextmanager
def a_daemon(folder: Path, embedder: Embedder) -> Iterator[Names]:
    """A client of a real gateway, a publisher to its relay, and one entry in quarantine."""
    with gateway_without_ray(folder, embedder, SOON) as served:
        with Subscriber(*served.relay) as subscriber:
            subscriber.quarantine(b"{'a':", "malformed_event", "is not JSON", source="intake")
        with (
            MemoryClient("alice", data_dir=folder, endpoint=served.gateway) as memory,
            Publisher(served.relay.ingest) as publisher,
        ):
            yield {"memory": memory, "publisher": publisher}


@contextmanager
def a_relay(folder: Path, _: Embedder) -> Iterator[Names]:
    """A publisher and the endpoints of a real relay."""
    with Broker(folder / "data") as broker, Publisher(broker.endpoints.ingest) as publisher:
        yield {"publisher": publisher, "data_dir": folder / "data"}


@contextmanager
def a_full_relay(folder: Path, _: Embedder) -> Iterator[Names]:
    """A subscriber to a relay whose journal contains the events."""
    with Broker(folder / "data") as broker:
        with Publisher(broker.endpoints.ingest) as publisher:
            for event in EVENTS:
                publisher.publish(event)
            assert publisher.flush().acked == len(EVENTS)
        with Subscriber(*broker.endpoints, consumer="indexer") as subscriber:
            yield {"subscriber": subscriber, "data_dir": folder / "data"}


@contextmanager
def a_journal(folder: Path, _: Embedder) -> Iterator[Names]:
    with Journal.open(folder / "journal-of-alice") as journal:
        yield {"journal": journal}


@contextmanager
def a_key_ring(folder: Path, _: Embedder) -> Iterator[Names]:
    yield {"ring": KeyRing(folder / "ring")}


@contextmanager
def nothing(_: Path, __: Embedder) -> Iterator[Names]:
    yield {}


@contextmanager
def a_masker(_: Path, __: Embedder) -> Iterator[Names]:
    yield {"masker": Masker(), "word": "kq7xW2pz"}  # a fake password


@contextmanager
def a_lesson(_: Path, __: Embedder) -> Iterator[Names]:
    """The lesson of a run that used memory 7, whose direction differs from that of the query."""
    query, memory = np.eye(4, dtype=np.float32)[[0, 1]]
    yield {"lesson": Lesson(1, query, used=(7,), vectors=memory[None], credits=(1.0,), quality=1.0)}


WORLDS: dict[Any, World] = {
    Memory: a_memory,
    Browsing: a_memory,
    Runs: a_memory,
    Sona: a_memory,
    Care: a_memory,
    Erasure: a_memory,
    Triggers: a_memory,
    Shared: a_memory,
    Judge: a_memory,
    Knowledge: nothing,
    SearchQuota: nothing,
    mentions: nothing,
    context_block: a_memory,
    load_settings: a_memory,
    MemoryMethods: a_daemon,
    ErasureMethods: a_daemon,
    MemoryClient.blocks: a_daemon,
    MemoryClient.shared_changes: a_daemon,
    Publisher: a_relay,
    Subscriber: a_full_relay,
    Journal: a_journal,
    KeyRing: a_key_ring,
    open_key_ring: a_key_ring,
    Masker: a_masker,
    create_key: nothing,
    decode_event: nothing,
    encode_event: nothing,
    event_from_mapping: nothing,
    masked_kinds: nothing,
    matches: nothing,
    matches_any: nothing,
    groups_of: nothing,
    read_event: nothing,
    set_person: nothing,
    Learner: a_lesson,
    Adaptation: a_lesson,
}
INNER: dict[Any, set[str]] = {
    Runs: {"judge"},
    Shared: {"begin_search", "of_caller"},
    Judge: {"close", "select", "share"},
    Knowledge: {"ask", "begin_search", "expire"},
    Erasure: {
        "age",
        "admitting",
        "age_at_opening",
        "begin",
        "carry_out",
        "erase_again",
        "forgotten",
        "is_forgotten",
        "noting_age",
        "plan",
        "receipt",
        "resume",
        "start",
    },
    Journal: {"set_aside"},
    Learner: {"hold"},
}
"""Public methods without an example, because only other parts of the product call them."""


def public(owner: Any) -> dict[str, Any]:
    """Return the public methods that a class defines, or the function itself."""
    if not isinstance(owner, type):
        return {owner.__qualname__: owner}
    methods = {name: inspect.unwrap(getattr(owner, name)) for name in vars(owner) if not name.startswith("_")}
    return {f"{owner.__qualname__}.{name}": one for name, one in methods.items() if inspect.isroutine(one)}


PUBLIC = {name: (owner, one) for owner in WORLDS for name, one in public(owner).items()}
WITHOUT = {f"{owner.__qualname__}.{name}" for owner, names in INNER.items() for name in names}
WITH = {name: found for name, found in PUBLIC.items() if name not in WITHOUT}
CLASSES = {owner.__qualname__: (owner, owner) for owner in WORLDS if ">>> " in (vars(owner).get("__doc__") or "")}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    """The real model, which is also used by the memories that examples open."""
    cache = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMORY_AGENT_MODEL_CACHE", str(cache))
        embedder = open_embedder(EmbedderSettings(allow_download=False), cache=cache)
        yield embedder
        embedder.close()


@pytest.mark.parametrize("name", list(WITH | CLASSES))
def test_the_example_runs_as_printed(name: str, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, one = (WITH | CLASSES)[name]
    documentation = inspect.cleandoc(one.__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="example-") as folder:  # short enough for socket files
        monkeypatch.chdir(folder)
        with no_log(), WORLDS[owner](Path(folder), embedder) as prepared:
            names = vars(sys.modules[owner.__module__]) | NAMES | prepared
            example = doctest.DocTestParser().get_doctest(documentation, names, name, owner.__module__, 0)
            said: list[str] = []
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("name", list(WITH))
def test_every_public_method_has_an_example(name: str) -> None:
    assert ">>> " in (WITH[name][1].__doc__ or ""), f"{name} has no example; its docstring must end with one"


def test_every_verb_of_a_user_has_an_example() -> None:
    verbs = {declared(verb).__qualname__ for verb in VERBS if not verb.is_inner}
    assert verbs <= set(WITH)


def test_the_methods_without_an_example_exist() -> None:
    assert set(PUBLIC) >= WITHOUT
    assert [name for name in WITHOUT if ">>> " in (PUBLIC[name][1].__doc__ or "")] == []


def test_the_examples_are_short() -> None:
    lengths = {name: one.__doc__[one.__doc__.find(">>> ") :].strip().count("\n") + 1 for name, (_, one) in WITH.items()}
    assert {name: lines for name, lines in lengths.items() if lines > 7} == {}
