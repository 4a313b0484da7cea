"""Test how machines join and leave, and which ones are up. A dictionary replaces Ray's list of nodes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from memory_agent.daemon import nodes as nodes_module
from memory_agent.daemon.compatibility import in_common
from memory_agent.daemon.node import require_ring, require_same_clock
from memory_agent.daemon.nodes import Nodes
from memory_agent.daemon.supervisor import Supervisor
from memory_agent.errors import (
    EncryptionKeyMissingError,
    InvalidInputError,
    MemoryAgentError,
    NoClusterError,
    NodeLeftError,
    NodeMismatchError,
    NodeNameTakenError,
    UnavailableError,
)
from memory_agent.settings import ClusterSettings
from memory_agent.storage.environment import open_user_key
from memory_agent.verbs.params import JoinParams
from memory_agent.verbs.protocol import Certificate, JoinGrant
from relay import EncryptionSettings
from relay.crypto import KeyRing, ring_file

MODEL = "minilm|1"
GRANT = JoinGrant(
    gcs="10.0.0.1:1",
    token="t",
    certificate=Certificate(authority="a", certificate="c", private_key="k"),
    curve=("public", "secret"),
    shared="curve+tcp://10.0.0.1:2",
)


class FakeRay:
    """The part of a supervisor that `Nodes` uses. `alive` maps machines to Ray's ids."""

    def __init__(self) -> None:
        self.alive: dict[str, frozenset[str]] = {}
        self.ended: list[str] = []

    def grant(self, address: str) -> JoinGrant:
        return GRANT

    async def ray_nodes(self) -> dict[str, frozenset[str]]:
        return self.alive

    async def end_node(self, node: str) -> None:
        self.ended.append(node)
        self.alive.pop(node, None)


class Cluster:
    """`Nodes` on a fake Ray, with a record of drained machines."""

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.ray = FakeRay()
        self.drained: list[str] = []
        self.drains: asyncio.Event | None = None
        settings = settings or ClusterSettings(listen="10.0.0.1")
        supervisor = cast(Supervisor, self.ray)
        self.nodes = Nodes(supervisor, settings, lambda: MODEL, self.drain)

    async def drain(self, name: str) -> None:
        self.drained.append(name)
        if self.drains is not None:
            await self.drains.wait()

    async def join(self, **differing: Any) -> JoinGrant:
        return await self.nodes.join(joining(**differing))

    async def see(self, condition: Callable[[], bool]) -> None:
        """Run the watch until `condition` holds."""
        watch = asyncio.create_task(self.nodes.run())
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


def joining(**differing: Any) -> JoinParams:
    own = {
        "name": "w-1",
        "address": "10.0.0.2",
        "cores": 4,
        "version": "0.0.1",
        "model": MODEL,
        "in_common": in_common(),
    }
    return JoinParams(**{**own, **differing})


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "_WATCH_S", 0.001)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_machine_is_up_once_ray_has_seen_it() -> None:
    async def go() -> None:
        cluster = Cluster()
        assert replace(await cluster.join(), now_s=0.0, clock_tolerance_s=0.0) == GRANT
        assert cluster.nodes.up() == {}
        (node,) = cluster.nodes.all()
        assert (node.name, node.address, node.cores, node.version) == ("w-1", "10.0.0.2", 4, "0.0.1")
        assert node.state == "joining"
        cluster.ray.alive["w-1"] = frozenset({"id-1"})
        await cluster.see(lambda: cluster.nodes.up() == {"w-1": 4})

    run(go())


@pytest.mark.parametrize(
    ("daemon_s", "off"),
    [(100.0, ""), (94.9, "+5.1 s"), (115.1, "-5.1 s"), (95.1, ""), (114.9, ""), (3_700.0, "-3590.0 s")],
)
def test_a_clock_is_wrong_only_if_no_delay_explains_it(daemon_s: float, off: str) -> None:
    """By its own clock, the machine sent the request at 100 s and received the answer at 110 s."""
    grant = replace(GRANT, now_s=daemon_s, clock_tolerance_s=5.0)
    with pytest.raises(NodeMismatchError, match=re.escape(off)) if off else nullcontext():
        require_same_clock(grant, 100.0, 110.0)


@pytest.mark.parametrize(
    ("differing", "error", "says"),
    [
        ({"name": "w_1"}, InvalidInputError, "name: must be"),
        ({"name": ""}, InvalidInputError, "name: must be"),
        ({"name": "w" * 64}, InvalidInputError, "name: must be"),
        ({"name": "w\n"}, InvalidInputError, "name: must be"),
        ({"address": "0.0.0.0"}, InvalidInputError, "address: '0.0.0.0'"),
        ({"address": "worker.example"}, InvalidInputError, "address: 'worker.example'"),
        ({"in_common": {}}, NodeMismatchError, "the protocol of this machine is 0"),
        ({"model": "e5|1"}, NodeMismatchError, "the model of this machine is e5|1"),
        ({"model": None}, NodeMismatchError, "the model of this machine is missing"),
    ],
)
def test_a_machine_that_does_not_fit_may_not_join(
    differing: dict[str, Any], error: type[MemoryAgentError], says: str
) -> None:
    async def go() -> None:
        cluster = Cluster()
        with pytest.raises(error, match=says.replace("|", r"\|")):
            await cluster.join(**differing)
        assert cluster.nodes.all() == ()

    run(go())


def test_a_machine_of_the_former_protocol_joins_again_once_it_is_upgraded() -> None:
    async def go() -> None:
        cluster = Cluster()
        with pytest.raises(NodeMismatchError) as refused:  # the daemon was upgraded and forgot the machine
            await cluster.join(in_common={**in_common(), "protocol": 0}, again=True)
        assert not refused.value.retryable  # the machine's process ends, and the supervisor starts another version
        await cluster.join()
        cluster.ray.alive["w-1"] = frozenset({"id-1"})
        await cluster.see(lambda: cluster.nodes.up() == {"w-1": 4})

    run(go())


def test_a_daemon_without_a_cluster_accepts_no_machine() -> None:
    async def go() -> None:
        with pytest.raises(NoClusterError, match=r"cluster\.listen"):
            await Cluster(ClusterSettings()).join()

    run(go())


def test_a_name_belongs_to_the_machine_that_has_it() -> None:
    async def go() -> None:
        cluster = Cluster()
        await cluster.join()
        with pytest.raises(NodeNameTakenError, match=r"10\.0\.0\.2"):
            await cluster.join(address="10.0.0.3")
        await cluster.join(cores=8)
        assert [node.cores for node in cluster.nodes.all()] == [8]

    run(go())


def test_a_leaving_machine_receives_no_users_and_ends_when_they_have_moved() -> None:
    async def go() -> None:
        cluster = Cluster()
        await cluster.join()
        cluster.ray.alive["w-1"] = frozenset({"id-1"})
        await cluster.see(lambda: cluster.nodes.up() == {"w-1": 4})
        cluster.drains = asyncio.Event()
        leaving = [asyncio.create_task(cluster.nodes.leave("w-1")) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert cluster.nodes.up() == {}
        assert [node.state for node in cluster.nodes.all()] == ["leaving"]
        leaving[0].cancel()  # its caller gave up
        cluster.drains.set()
        await leaving[1]
        await cluster.nodes.leave("w-1")
        assert (cluster.drained, cluster.ray.ended, cluster.nodes.all()) == (["w-1"], ["w-1"], ())
        with pytest.raises(InvalidInputError, match="no machine 'w-2'"):
            await cluster.nodes.leave("w-2")

    run(go())


def test_a_machine_that_could_not_leave_stays() -> None:
    async def go() -> None:
        async def refuse(name: str) -> None:
            raise UnavailableError("alice could not be archived")

        cluster = Cluster()
        nodes = Nodes(cast(Supervisor, cluster.ray), ClusterSettings(listen="10.0.0.1"), lambda: MODEL, refuse)
        await nodes.join(joining())
        with pytest.raises(UnavailableError):
            await nodes.leave("w-1")
        assert [node.state for node in nodes.all()] != ["leaving"]
        assert cluster.ray.ended == []

    run(go())


def test_a_machine_that_left_joins_again_only_if_a_person_wants_it() -> None:
    async def go() -> None:
        cluster = Cluster()
        await cluster.join()
        await cluster.nodes.leave("w-1")
        with pytest.raises(NodeLeftError, match="w-1 has left"):
            await cluster.join(again=True)
        await cluster.join()
        await cluster.join(again=True)

    run(go())


def test_a_machine_that_ray_declares_dead_is_forgotten_until_it_joins_again() -> None:
    async def go() -> None:
        cluster = Cluster()
        await cluster.join()
        cluster.ray.alive["w-1"] = frozenset({"id-1"})
        await cluster.see(lambda: bool(cluster.nodes.up()))
        cluster.ray.alive.clear()
        await cluster.see(lambda: cluster.nodes.all() == ())
        assert cluster.nodes.all() == ()
        await cluster.join(again=True)

    run(go())


def test_the_end_of_a_machines_former_ray_is_not_the_end_of_the_machine() -> None:
    async def go() -> None:
        cluster = Cluster()
        cluster.ray.alive["w-1"] = frozenset({"id-1"})  # dead, but still listed by Ray
        await cluster.join(again=True)
        await cluster.see(lambda: True)
        assert cluster.nodes.up() == {}
        cluster.ray.alive = {}
        await cluster.see(lambda: True)
        cluster.ray.alive["w-1"] = frozenset({"id-2"})
        await cluster.see(lambda: cluster.nodes.up() == {"w-1": 4})
        assert [node.name for node in cluster.nodes.all()] == ["w-1"]

    run(go())


def test_a_machine_whose_hosts_are_silent_must_join_again() -> None:
    async def go() -> None:
        cluster = Cluster()
        await cluster.join()
        cluster.nodes.lost("w-1")
        cluster.nodes.lost("w-1")
        await asyncio.sleep(0)
        assert (cluster.nodes.all(), cluster.ray.ended) == ((), ["w-1"])

    run(go())


def test_a_machine_without_the_daemons_keys_may_not_join(tmp_path: Path) -> None:
    keys, other = tmp_path / "keys", tmp_path / "other"
    home, machine = tmp_path / "home", tmp_path / "machine"
    for folder in (home, machine, other):
        folder.mkdir()
    KeyRing(keys, home).claim()
    grant = replace(GRANT, keys_folder=str(keys), ring=ring_file(home).read_bytes())
    require_ring(grant, machine)
    require_ring(grant, machine)
    with pytest.raises(EncryptionKeyMissingError):
        require_ring(replace(grant, keys_folder=str(other)), machine)
    key = open_user_key(EncryptionSettings(keys_folder=str(other)), machine, "alice")
    assert key is not None
    with pytest.raises(EncryptionKeyMissingError):  # the machine does not create its own key
        key.cipher("records", create=True)
    require_ring(GRANT, machine)
    assert not ring_file(machine).exists()
