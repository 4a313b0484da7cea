"""Who may see, change and take away what users share, by the key that they come with, through each door."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from http_caller import HttpCaller, HttpMethods
from served_gateway import Served, gateway_without_ray

from memory_agent import AsyncMemoryClient, MemoryClient
from memory_agent.client.methods import MemoryMethods
from memory_agent.embedders import Embedder, open_embedder
from memory_agent.errors import (
    InvalidInputError,
    ScopeMissingError,
    StoreDamagedError,
    UnauthorizedError,
    UserNotAllowedError,
)
from memory_agent.knowledge.remote import RemoteKnowledge
from memory_agent.settings import EmbedderSettings, Settings, SharedSettings
from memory_agent.shared_asks import AnyAsk, Caller, ForgetUser
from memory_agent.shared_content import MOST_ATTACHED_BYTES
from memory_agent.shared_records import GlobalRecord
from memory_agent.storage.folders import user_folder
from relay import ALL_SCOPES, SHARED_USER, BrokerSettings, RelaySettings, Scope, create_key, revoke_key

QUESTION = "what does staging need?"
FIX = "Staging needs the VPN: connect to it before a deploy"
PUBLIC, ACME, PRO = "public", "org:acme", "tier:pro"
GROUPS: dict[str, dict[str, Any]] = {
    "author": {"orgs": frozenset({"acme", "zoo"}), "tier": "pro"},
    "member": {"orgs": frozenset({"acme"})},
    "payer": {"orgs": frozenset({"zoo"}), "tier": "pro"},
    "other": {"orgs": frozenset({"acmee"}), "tier": "free"},
    "nobody": {},
}
SEES = {
    "author": {PUBLIC, ACME, PRO},
    "member": {PUBLIC, ACME},
    "payer": {PUBLIC, PRO},
    "other": {PUBLIC},
    "nobody": {PUBLIC},
}
BOTH = ("local", "global")


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


@pytest.fixture(scope="module", params=["zmq", "http"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(embedder: Embedder) -> Iterator[Served]:
    settings = Settings(shared=SharedSettings(searches=10_000))
    soon = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.1))  # an erasure waits for it
    with (
        tempfile.TemporaryDirectory(prefix="doors-") as folder,
        gateway_without_ray(Path(folder), embedder, soon, settings) as served,
    ):
        yield served


class Doors:
    """Callers with a key each."""

    def __init__(self, served: Served, door: str, stack: ExitStack) -> None:
        self.served = served
        self.door = door
        self._stack = stack

    def caller(self, user_id: str, key: str, scopes: frozenset[Scope], **groups: Any) -> MemoryMethods:
        token = create_key(self.served.data_dir, f"{key}-{self.door}", user_id, scopes, **groups).token
        if self.door == "http":
            caller = HttpCaller(self.served.http, token)
            self._stack.callback(caller.close)
            return HttpMethods(caller, user_id)
        client = MemoryClient(user_id, endpoint=self.served.gateway, token=token)
        return self._stack.enter_context(client)


@pytest.fixture(scope="module")
def doors(served: Served, door: str) -> Iterator[Doors]:
    with ExitStack() as stack:
        yield Doors(served, door, stack)


@pytest.fixture(scope="module")
def callers(doors: Doors) -> dict[str, MemoryMethods]:
    scopes = frozenset({Scope.PUBLISH, Scope.RECALL, Scope.SHARE})
    return {name: doors.caller(f"{name}-{doors.door}", name, scopes, **groups) for name, groups in GROUPS.items()}


def published(caller: MemoryMethods, policy: str = PUBLIC, data: bytes | None = None, **fields: Any) -> GlobalRecord:
    preview = caller.shared.preview(
        f"For {policy}", f"{FIX}, {policy}", access_policy=policy, attachment=data, **fields
    )
    return caller.shared.confirm(preview, data)


@pytest.fixture(scope="module")
def items(callers: dict[str, MemoryMethods]) -> dict[str, GlobalRecord]:
    """An item for each policy."""
    return {policy: published(callers["author"], policy, f"for {policy}".encode()) for policy in (PUBLIC, ACME, PRO)}


@pytest.mark.parametrize("name", GROUPS)
def test_a_caller_reaches_what_the_key_admits_and_nothing_else(
    callers: dict[str, MemoryMethods], items: dict[str, GlobalRecord], name: str
) -> None:
    caller, ids = callers[name], {item.id: policy for policy, item in items.items()}
    found = caller.shared.search(QUESTION, 100, min_relevance=0.0)
    assert {ids[one.item.id] for one in found if one.item.id in ids} == SEES[name]
    for tiers in (("global",), BOTH):
        result = caller.recall(QUESTION, 50, tiers=tiers, min_relevance=0.0, deadline_ms=30_000.0)
        others = set() if name == "author" else SEES[name]  # one's own take no place in a recall
        assert {ids[one.record.id] for one in result.memories if one.record.id in ids} == others
        assert result.degraded == ()
    for policy, item in items.items():
        if policy in SEES[name]:
            assert caller.shared.item(item.id).body == item.body
            assert caller.shared.item(item.id).access_policy == policy
            assert caller.shared.attachment(item.id).data == f"for {policy}".encode()
            if name != "author":
                caller.shared.rate(item.id, 1.0)
            continue
        for ask in (caller.shared.item, caller.shared.attachment, lambda id_: caller.shared.rate(id_, 1.0)):
            with pytest.raises(InvalidInputError) as refused:
                ask(item.id)
            with pytest.raises(InvalidInputError) as unknown:
                ask("01KHJY9080NWG22H9Q8BBD7B80")
            assert refused.value.args == unknown.value.args
    assert {one.id for one in caller.shared.published()} >= (ids.keys() if name == "author" else set())
    if name != "author":
        assert caller.shared.published() == []
        assert not any(caller.shared.unpublish(item.id).found for item in items.values())


@pytest.mark.parametrize("name", GROUPS)
def test_a_caller_publishes_for_groups_of_the_key_alone(callers: dict[str, MemoryMethods], name: str) -> None:
    for policy in {PUBLIC, ACME, PRO}.difference(SEES[name]):
        with pytest.raises(InvalidInputError, match="access_policy"):
            published(callers[name], policy)


def test_no_answer_names_a_user(callers: dict[str, MemoryMethods], items: dict[str, GlobalRecord]) -> None:
    caller = callers["nobody"]
    answers = [
        caller.shared.search(QUESTION, 100, min_relevance=0.0),
        caller.recall(QUESTION, 50, tiers=BOTH, min_relevance=0.0, context_tokens=500),
        list(items.values()),
    ]
    assert "author-" not in msgspec.json.encode(answers).decode()


def test_what_a_key_has_no_scope_for_is_refused(doors: Doors, items: dict[str, GlobalRecord]) -> None:
    reader = doors.caller(f"reader-{doors.door}", "reader", frozenset({Scope.RECALL}))
    assert items[PUBLIC].id in {one.item.id for one in reader.shared.search(QUESTION, 100)}
    for ask in (
        lambda: reader.shared.preview("A title", FIX),
        lambda: reader.shared.rate(items[PUBLIC].id, 0.0),
        lambda: reader.shared.unpublish(items[PUBLIC].id),
        lambda: reader.shared.set_name("Reader"),
    ):
        with pytest.raises(ScopeMissingError):
            ask()
    writer = doors.caller(f"writer-{doors.door}", "writer", frozenset({Scope.PUBLISH, Scope.SHARE}))
    ids = items[PUBLIC].id
    for read in (
        lambda: writer.shared.search(QUESTION),
        lambda: writer.shared.item(ids),
        lambda: writer.shared.attachment(items[PUBLIC].id),
    ):
        with pytest.raises(ScopeMissingError):
            read()


def test_an_administrator_takes_away_what_anybody_shared(doors: Doors, callers: dict[str, MemoryMethods]) -> None:
    item = published(callers["member"], ACME, b"[poison]")
    assert not callers["author"].shared.unpublish(item.id).found
    admin = doors.caller(f"admin-{doors.door}", "admin", frozenset({Scope.RECALL, Scope.SHARE, Scope.SHARED_ADMIN}))
    with pytest.raises(InvalidInputError, match="no shared item"):
        admin.shared.attachment(item.id)  # to take away is not to read
    assert admin.shared.unpublish(item.id).found
    assert callers["member"].shared.published() == []


def test_what_a_key_admits_ends_with_the_key(doors: Doors, items: dict[str, GlobalRecord]) -> None:
    scopes, user_id = frozenset({Scope.RECALL}), f"leaver-{doors.door}"
    former = doors.caller(user_id, "former", scopes, orgs=frozenset({"acme"}))
    present = doors.caller(user_id, "present", scopes)
    assert former.shared.attachment(items[ACME].id).data == b"for org:acme"
    revoke_key(doors.served.data_dir, f"former-{doors.door}")
    with pytest.raises(UnauthorizedError):
        former.shared.attachment(items[ACME].id)
    with pytest.raises(InvalidInputError):
        present.shared.attachment(items[ACME].id)


def test_an_attachment_of_a_megabyte_passes_and_no_larger_one(callers: dict[str, MemoryMethods]) -> None:
    data = bytes(range(256)) * (MOST_ATTACHED_BYTES // 256)
    item = published(callers["author"], PUBLIC, data, attachment_name="rules.bin")
    assert callers["nobody"].shared.attachment(item.id).data == data
    with pytest.raises(InvalidInputError, match="attachment"):
        published(callers["author"], PUBLIC, data + b"\0")
    assert callers["author"].shared.unpublish(item.id).found
    with pytest.raises(InvalidInputError):
        callers["nobody"].shared.attachment(item.id)


def test_clients_follow_what_their_key_admits_and_go_on_where_they_left_off(served: Served) -> None:
    scopes = frozenset({Scope.PUBLISH, Scope.RECALL, Scope.SHARE})
    tokens = [
        create_key(served.data_dir, name, name, scopes, orgs=frozenset({"acme"}) if name == "follows" else frozenset())
        for name in ("follows", "outside")
    ]
    member, outside = (
        MemoryClient(key.id, endpoint=served.gateway, data_dir=served.data_dir, token=key.token) for key in tokens
    )

    async def later(after: int) -> tuple[str, str | None]:
        of_key = {"endpoint": served.gateway, "data_dir": served.data_dir, "token": tokens[0].token}
        async with AsyncMemoryClient("follows", **of_key) as client, client.shared_changes(after) as changes:
            change = await anext(changes)
            assert changes.seq > after
            return change.kind, change.item_id

    with member, outside, member.shared_changes() as heard, outside.shared_changes() as heard_outside:
        hidden, shown = published(member, ACME), published(member, PUBLIC)
        assert next(heard).item_id == hidden.id
        seq = heard.seq
        assert next(heard).item_id == next(heard_outside).item_id == shown.id
        assert asyncio.run(later(seq)) == ("published", shown.id)
        for item in (hidden, shown):
            assert member.shared.unpublish(item.id).found
        assert [next(heard).kind, next(heard).kind, next(heard_outside).kind] == ["unpublished"] * 3
        with outside.shared_changes(seq) as again:
            assert next(again).kind == "unpublished"
            assert again.seq == heard_outside.seq


def test_nobody_asks_in_the_name_of_the_store(doors: Doors) -> None:
    local = HttpMethods(HttpCaller(doors.served.http, doors.served.token), SHARED_USER)
    for ask in (lambda: local.recall(QUESTION), lambda: local.remember(FIX), lambda: local.shared.published()):
        with pytest.raises(InvalidInputError, match="reserved"):
            ask()
    local._caller.close()


def test_the_store_is_rebuilt_and_compacted_by_whose_key_is_for_all_users(
    doors: Doors, items: dict[str, GlobalRecord]
) -> None:
    """A command without a user sends this for every known user; after a change of the model nothing else would."""
    caller = HttpCaller(doors.served.http, doors.served.token)
    local = HttpMethods(caller, SHARED_USER)
    assert local.care.rebuild() == local.stats().memories >= len(items)
    assert local.care.rebuild(vectors=True) == local.stats().waiting == 0
    assert local.care.compact().bytes_after > 0
    caller.close()
    admin = HttpCaller(doors.served.http, create_key(doors.served.data_dir, doors.door, "ann", ALL_SCOPES).token)
    for ask in (HttpMethods(admin, SHARED_USER).care.rebuild, HttpMethods(admin, SHARED_USER).stats):
        with pytest.raises(UserNotAllowedError):
            ask()
    admin.close()


def test_a_users_items_go_when_nothing_of_the_user_is_under_way(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a publish that is under way would stay: the user is asleep, and new requests wait."""
    user_id, ask = f"gone-{doors.door}", RemoteKnowledge.ask
    awake = []

    def noting(self: RemoteKnowledge, caller: Caller, asked: AnyAsk, timeout_s: float) -> Any:
        if isinstance(asked, ForgetUser):
            awake.append(user_id in doors.served.host._memories)
        return ask(self, caller, asked, timeout_s)

    monkeypatch.setattr(RemoteKnowledge, "ask", noting)
    gone = doors.caller(user_id, "gone", ALL_SCOPES)
    item = published(gone)
    receipt = gone.erasure.erase_user()
    assert (receipt.unpublished, receipt.complete, awake) == (1, True, [False])
    assert item.id not in {one.item.id for one in gone.shared.search(QUESTION, 100, min_relevance=0.0)}


def test_a_damaged_store_keeps_no_user_from_being_erased(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    user_id, ask = f"sent-{doors.door}", RemoteKnowledge.ask

    def damaged(self: RemoteKnowledge, caller: Caller, asked: AnyAsk, timeout_s: float) -> Any:
        if isinstance(asked, ForgetUser):
            raise StoreDamagedError("its pages")
        return ask(self, caller, asked, timeout_s)

    gone = doors.caller(user_id, "sent", ALL_SCOPES)
    gone.remember("Of this user alone")
    item = published(gone)
    with monkeypatch.context() as patched:
        patched.setattr(RemoteKnowledge, "ask", damaged)
        receipt = gone.erasure.erase_user()
    assert not receipt.complete
    assert receipt.reason is not None
    assert "store_damaged" in receipt.reason
    assert not user_folder(doors.served.data_dir, user_id).exists()
    again = gone.erasure.erase_user()  # once the store is back
    assert (again.complete, again.unpublished) == (True, 1)
    assert item.id not in {one.item.id for one in gone.shared.search(QUESTION, 100, min_relevance=0.0)}
