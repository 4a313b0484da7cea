"""Test that clients send the right credentials by default, and that refusals name a key but never show its secret."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from served_gateway import Served, gateway_without_ray
from served_host import absent_embedder

from memory_agent import ActorMemoryProvider, AsyncMemoryClient, MemoryClient
from memory_agent.errors import (
    InvalidInputError,
    ScopeMissingError,
    SettingsError,
    UnauthorizedError,
    UserNotAllowedError,
)
from relay import (
    ALL_SCOPES,
    LOCAL,
    KeyDocument,
    Publisher,
    Scope,
    create_key,
    curve_pair,
    local_identity,
    revoke_key,
    rotate_key,
)
from relay.disk import write_private


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="shown-") as folder:
        data_dir = Path(folder)
        with absent_embedder(data_dir) as embedder, gateway_without_ray(data_dir, embedder) as served:
            yield served


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEMORY_AGENT_KEY_FILE", "MEMORY_AGENT_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def key_file(served: Served, name: str, user_id: str, *scopes: Scope) -> tuple[Path, KeyDocument]:
    made = create_key(served.data_dir, name, user_id, frozenset(scopes or ALL_SCOPES))
    file = served.data_dir / f"{name}.key"
    write_private(file, msgspec.json.encode(made))
    return file, made


def whose(client: MemoryClient) -> str:
    with client:
        return client.stats().user_id


async def whose_async(client: AsyncMemoryClient) -> str:
    async with client:
        return (await client.stats()).user_id


def test_clients_resolve_keys_in_the_order_of_the_command_line(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    alices, _ = key_file(served, "alices", "alice")
    bobs, bob = key_file(served, "bobs", "bob")
    own = {"data_dir": served.data_dir, "endpoint": served.gateway}
    assert whose(MemoryClient("carol", **own)) == "carol"  # type: ignore[arg-type]  # the folder's own key
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", bob.token)
    assert whose(MemoryClient(**own)) == "bob"  # type: ignore[arg-type]
    monkeypatch.setenv("MEMORY_AGENT_KEY_FILE", str(alices))
    assert whose(MemoryClient(**own)) == "alice"  # type: ignore[arg-type]
    assert asyncio.run(whose_async(AsyncMemoryClient(**own))) == "alice"  # type: ignore[arg-type]
    assert whose(MemoryClient(**own, key_file=bobs)) == "bob"  # type: ignore[arg-type]
    assert whose(MemoryClient(**own, token=bob.token)) == "bob"  # type: ignore[arg-type]


def test_a_key_for_one_user_refuses_any_other_name(served: Served) -> None:
    fayes, _ = key_file(served, "fayes", "faye")
    own = {"data_dir": served.data_dir, "endpoint": served.gateway}
    for named in ("default", "alice"):
        with pytest.raises(UserNotAllowedError, match="fayes"):
            whose(MemoryClient(named, **own, key_file=fayes))  # type: ignore[arg-type]
    with MemoryClient(**own, key_file=fayes) as client:  # type: ignore[arg-type]
        assert (client.user_id, client.stats().user_id) == ("faye", "faye")
    assert whose(MemoryClient(**own)) == "default"  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="must not be empty"):
        MemoryClient("", **own)  # type: ignore[arg-type]


def test_a_key_that_only_writes_learns_nothing_of_the_memory_that_it_replaces(served: Served) -> None:
    _, all_scopes = key_file(served, "gail-all", "gail")
    _, made = key_file(served, "gail-writes", "gail", Scope.PUBLISH)
    then = datetime(2024, 5, 1, tzinfo=UTC)
    with (
        MemoryClient("gail", endpoint=served.gateway, token=all_scopes.token) as owner,
        MemoryClient("gail", endpoint=served.gateway, token=made.token) as writer,
    ):
        owner.remember("Staging needs the VPN", id="vpn", timestamp=then)
        new = writer.remember("Lunch is at noon", id="lunch")
        replaced = writer.remember("Staging needs no VPN", id="vpn")
        assert (replaced.text, replaced.updated_at, replaced.event_id) == ("Staging needs no VPN", None, None)
        assert replaced.timestamp >= new.timestamp > then
        assert [name for name in new.__struct_fields__ if getattr(new, name) != getattr(replaced, name)] == [
            "id",
            "text",
            "timestamp",
        ]
        (kept,) = owner.get(["vpn"])
        assert (kept.timestamp, kept.updated_at) == (then, replaced.timestamp)
        assert owner.remember("Staging is gone", id="vpn").timestamp == then


def test_every_client_names_a_missing_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"none\.key"):
        ActorMemoryProvider("alice", data_dir=tmp_path, key_file=tmp_path / "none.key")
    monkeypatch.setenv("MEMORY_AGENT_KEY_FILE", str(tmp_path / "none.key"))
    for client in (MemoryClient, AsyncMemoryClient, ActorMemoryProvider):
        with pytest.raises(SettingsError, match=r"none\.key"):
            client("alice", data_dir=tmp_path)


def test_a_refusal_names_the_key_and_never_its_token(served: Served) -> None:
    _, made = key_file(served, "dora-reads", "dora", Scope.RECALL)
    refusals = []
    with MemoryClient("dora", endpoint=served.gateway, token=made.token) as dora:
        with pytest.raises(ScopeMissingError) as scope:
            dora.remember("a key for reading cannot write")
        refusals.append(scope.value)
    with MemoryClient("erin", endpoint=served.gateway, token=made.token) as other:
        with pytest.raises(UserNotAllowedError) as user:
            other.recall("anything")
        refusals.append(user.value)
        revoke_key(served.data_dir, "dora-reads")
        with pytest.raises(UnauthorizedError) as revoked:
            other.recall("anything")
        refusals.append(revoked.value)
    for refusal in refusals:
        assert "dora-reads" in str(refusal)
        assert made.token not in repr(refusal)


def test_a_rotated_token_is_picked_up_and_the_old_one_refused(served: Served) -> None:
    former = (served.data_dir / "token").read_text()
    publisher = Publisher(served.relay.ingest, identity=local_identity(served.relay.ingest))
    event = {"event_type": "a.b", "user_id": "fred"}
    with MemoryClient("fred", data_dir=served.data_dir, endpoint=served.gateway) as client:
        publisher.publish({**event, "event_id": "before"})
        assert not publisher.flush().pending
        client.stats()
        rotate_key(served.data_dir, LOCAL, curve_pair)
        client.stats()
        publisher.publish({**event, "event_id": "after"})
        report = publisher.flush()
        assert (report.pending, report.rejections) == (0, ())
        client.wait({"fred": max(report.acked_through.values())}, 20.0)  # the daemon also reads with this key
    publisher.close()
    with MemoryClient("fred", endpoint=served.gateway, token=former) as late, pytest.raises(UnauthorizedError):
        late.stats()
