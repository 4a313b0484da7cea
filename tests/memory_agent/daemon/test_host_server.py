"""Test a host's sockets: recalls during ingestion, fairness, malformed requests, bugs, and the death of the host."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace
from provider_server import Request, hang, serving
from served_host import absent_embedder
from stopped_process import stop

from memory_agent.daemon.host import HostServer, MemoryHost, Workers
from memory_agent.daemon.place import Place, cluster_identity
from memory_agent.daemon.supervisor import HostConnection
from memory_agent.embedders import Embedder
from memory_agent.errors import DeadlineExceededError, HostDiedError, MemoryAgentError, ProtocolError, UnavailableError
from memory_agent.records.memories import MemoryStats, RecallResult
from memory_agent.settings import JudgeSettings, RecallSettings, Settings
from memory_agent.verbs.params import NoParams, Params, RecallParams, RememberParams
from memory_agent.verbs.protocol import HostEndpoints, HostRequest, decode_reply, encode
from relay import Identity, curve_pair
from relay.access import ipc_endpoint
from relay.net import ReplySocket, RequestSocket

STATS = [encode(HostRequest(user_id="alice", method="stats", deadline_ms=60_000.0, sent_at_s=0.0)), encode(NoParams())]
PROCESS = """
import sys
from pathlib import Path
from memory_agent.daemon.host import HostServer, MemoryHost
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.verbs.protocol import HostEndpoints
from memory_agent.settings import Settings
from relay.access import ipc_endpoint

folder = Path(sys.argv[1])
host = MemoryHost(folder, Settings(), RemoteEmbedder(f"ipc://{folder}/none.sock"))
endpoints = HostEndpoints(answer=ipc_endpoint(folder / "a.sock"), ingest=ipc_endpoint(folder / "i.sock"))
server = HostServer(host, endpoints, 8, 4)
print("ready", flush=True)
sys.stdin.read()
"""


def endpoints_in(folder: Path) -> HostEndpoints:
    return HostEndpoints(answer=ipc_endpoint(folder / "a.sock"), ingest=ipc_endpoint(folder / "i.sock"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[HostEndpoints]:
    with absent_embedder(tmp_path) as embedder:
        host = MemoryHost(tmp_path, Settings(), embedder)
        server = HostServer(host, endpoints_in(tmp_path), 4, 2)
        yield server.endpoints
        server.close()
        host.close()


def test_malformed_requests_are_refused_and_harmless(served: HostEndpoints) -> None:
    client = RequestSocket(served.answer)
    for junk in (
        [b""],
        [b"\xc1"],
        [b"\xc1", b""],
        [encode({"user_id": 7}), b""],
        [b"a", b"b", b"c"],
        [b"\x91" * 4096] * 2,
    ):
        with pytest.raises(ProtocolError):
            decode_reply(client.request(junk, 60.0)[0], MemoryStats)
    assert decode_reply(client.request(STATS, 60.0)[0], MemoryStats).user_id == "alice"
    client.close()


def test_a_host_on_another_machine_answers_only_peers_with_the_clusters_keys(tmp_path: Path) -> None:
    place = Place(data_dir=str(tmp_path), embedder="", shared="", address="127.0.0.1", curve=curve_pair())
    foreign = curve_pair()
    with absent_embedder(tmp_path) as embedder:
        host = MemoryHost(tmp_path, Settings(), embedder)
        server = HostServer(host, place.endpoints, 2, 1, place.curve)
        for endpoint in (server.endpoints.answer, server.endpoints.ingest):
            assert endpoint.startswith("curve+tcp://127.0.0.1:")
            for keys in (Identity(curve=foreign, server=place.identity.server), cluster_identity(foreign)):
                client = RequestSocket(endpoint, keys)
                with pytest.raises(DeadlineExceededError):
                    client.request(STATS, 0.3)
                client.close()
            plain = RequestSocket(endpoint.removeprefix("curve+"))
            with pytest.raises(DeadlineExceededError):
                plain.request(STATS, 0.3)
            plain.close()
        client = RequestSocket(server.endpoints.answer, place.identity)
        assert decode_reply(client.request(STATS, 60.0)[0], MemoryStats).user_id == "alice"
        client.close()
        server.close()
        host.close()


def test_the_host_of_shared_items_also_answers_other_machines(tmp_path: Path) -> None:
    curve = curve_pair()
    with absent_embedder(tmp_path) as embedder:
        host = MemoryHost(tmp_path, Settings(), embedder)
        server = HostServer(host, replace(endpoints_in(tmp_path), remote="curve+tcp://127.0.0.1:0"), 2, 1, curve)
        for endpoint in (server.endpoints.answer, server.endpoints.remote):
            client = RequestSocket(endpoint, cluster_identity(curve))
            assert decode_reply(client.request(STATS, 60.0)[0], MemoryStats).user_id == "alice"
            client.close()
        server.close()
        host.close()


def test_only_the_clock_of_the_same_machine_counts() -> None:
    assert HostRequest(user_id="a", deadline_ms=500.0, sent_at_s=99.9).remaining_ms(100.0) == pytest.approx(400.0)
    assert HostRequest(user_id="a", deadline_ms=500.0).remaining_ms(100.0) == 500.0


def test_a_bug_is_reported_with_its_traceback_but_without_its_text(tmp_path: Path) -> None:
    host = MemoryHost(cast(Path, None), Settings(), cast(Embedder, None))
    server = HostServer(host, endpoints_in(tmp_path), 2, 1)
    client = RequestSocket(server.endpoints.answer)
    params = encode(RememberParams(text="The launch code is a secret."))
    asked = [encode(HostRequest(user_id="alice", method="remember", deadline_ms=60_000.0)), params]
    reply, trace = client.request(asked, 60.0)
    with pytest.raises(MemoryAgentError, match="internal error"):
        decode_reply(reply, MemoryStats)
    assert b"in _wake" in trace
    assert b"secret" not in trace
    client.close()
    server.close()
    host.close()


def test_a_judge_that_hangs_does_not_delay_other_users(tmp_path: Path) -> None:
    """Two of four threads wait for the judge on behalf of one user, so other users' recalls are not judged."""
    arrived = threading.Semaphore(0)

    def never(request: Request) -> None:
        arrived.release()
        hang(request)

    with serving() as provider, absent_embedder(tmp_path) as embedder:
        provider.then(never)
        judge = JudgeSettings(server="openai", url=provider.url, model="small", at_once=2)
        recall = RecallSettings(min_relevance=0.0)
        host = MemoryHost(tmp_path, Settings(judge=judge, recall=recall), embedder)
        server = HostServer(host, endpoints_in(tmp_path), 4, 2)

        def asked(method: str, user_id: str, params: Params) -> list[bytes]:
            with closing(RequestSocket(server.endpoints.answer)) as client:
                request = HostRequest(user_id=user_id, method=method, deadline_ms=60_000.0)
                return client.request([encode(request), encode(params)], 60.0)

        for user_id in ("alice", "bob"):
            asked("remember", user_id, RememberParams(text="The deploy hung"))
        asking = [
            threading.Thread(target=asked, args=("recall", "alice", RecallParams(query=f"deploy {n}")))
            for n in range(2)
        ]
        for thread in asking:
            thread.start()
        for _ in asking:
            arrived.acquire()
        result = decode_reply(asked("recall", "bob", RecallParams(query="deploy"))[0], RecallResult)
        assert (len(result.memories), result.degraded) == (1, ("embedder_timeout", "judge_unavailable"))
        host.close()  # cancels the calls
        for thread in asking:
            thread.join()
        server.close()


def test_a_user_with_many_requests_leaves_threads_to_others(tmp_path: Path) -> None:
    """No user is served by more than half of the threads. Requests from other users overtake this user's waiting
    requests.
    """
    socket = ReplySocket(ipc_endpoint(tmp_path / "w.sock"))
    go_on = threading.Event()
    counts = {"running": 0, "most": 0}
    guard = threading.Lock()

    def answer(request: HostRequest, body: bytes) -> bytes:
        if request.user_id == "glutton":
            with guard:
                counts["running"] += 1
                counts["most"] = max(counts["most"], counts["running"])
            go_on.wait(60.0)
            with guard:
                counts["running"] -= 1
        return body

    def request_of(user_id: str) -> list[bytes]:
        return [encode(HostRequest(user_id=user_id)), user_id.encode()]

    workers = Workers("test", socket, 4, answer)
    gluttons = [RequestSocket(socket.endpoint) for _ in range(12)]
    answered: list[list[bytes]] = []
    asking = [
        threading.Thread(target=lambda one=one: answered.append(one.request(request_of("glutton"), 60.0)))
        for one in gluttons
    ]
    for thread in asking:
        thread.start()
    other = RequestSocket(socket.endpoint)
    for _ in range(20):
        assert other.request(request_of("other"), 60.0) == [b"other"]
    assert answered == []
    go_on.set()
    for thread in asking:
        thread.join()
    assert answered == [[b"glutton"]] * 12
    assert counts == {"running": 0, "most": 2}
    for one in (*gluttons, other):
        one.close()
    workers.close()


class Process:
    """A host process that can be killed and restarted, and the address to connect to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", PROCESS, str(self._folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def stop_answering(self) -> None:
        assert self._process is not None
        stop(self._process.pid)

    async def locate(self) -> str:
        if self._process is None:
            raise HostDiedError("host-1")
        return endpoints_in(self._folder).answer


def test_requests_fail_when_the_process_dies_and_later_ones_reach_the_restarted_one(tmp_path: Path) -> None:
    process = Process(tmp_path)

    async def scenario() -> None:
        connection = HostConnection("host-1", process.locate)
        with pytest.raises(UnavailableError) as caught:
            await connection.request(STATS, 60.0)
        assert not isinstance(caught.value, HostDiedError), "it was never sent, so it may be sent again"
        process.start()
        assert decode_reply(await connection.request(STATS, 60.0), MemoryStats).memories == 0
        process.stop_answering()
        asked = [asyncio.create_task(connection.request(STATS, 600.0)) for _ in range(16)]
        with pytest.raises(DeadlineExceededError):
            await connection.request(STATS, 0.05)
        process.kill()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {HostDiedError}
        process.start()
        assert decode_reply(await connection.request(STATS, 60.0), MemoryStats).memories == 0
        connection.close()
        connection.close()

    asyncio.run(scenario())
    process.kill()


def test_requests_that_wait_for_the_process_fail_when_the_connection_is_closed() -> None:
    async def scenario() -> None:
        located = asyncio.Event()

        async def locate() -> str:
            located.set()
            await asyncio.Event().wait()
            raise AssertionError

        connection = HostConnection("host-1", locate)
        asked = [asyncio.create_task(connection.request(STATS, 60.0)) for _ in range(4)]
        await located.wait()
        asked[0].cancel()
        connection.close()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] + [UnavailableError] * 3

    asyncio.run(scenario())


def test_a_process_whose_socket_file_is_removed_still_answers_and_can_be_found(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.start()

    async def scenario() -> None:
        first, second = HostConnection("host-1", process.locate), HostConnection("host-1", process.locate)
        assert await first.request(STATS, 60.0)
        (tmp_path / "a.sock").unlink()
        assert await first.request(STATS, 60.0)
        while True:
            try:
                assert await second.request(STATS, 60.0)
                break
            except UnavailableError:
                await asyncio.sleep(0.05)
        first.close()
        second.close()

    asyncio.run(scenario())
    process.kill()
