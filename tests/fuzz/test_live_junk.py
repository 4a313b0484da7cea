"""Send junk and half-valid messages to a real relay, gateway and host. All must continue to answer, stay below a memory
bound, and reveal nothing about other users.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec
import psutil
import pytest
import zmq
from agent_targets import ENCODED as PARAMS
from bus_targets import EVENTS, PACKED, REQUESTS
from mutations import mutate

from memory_agent import MemoryClient
from memory_agent.verbs.protocol import Request, encode
from memory_agent.verbs.table import BY_NAME
from relay import ALL_SCOPES, BrokerSettings, Publisher, RelaySettings, Scope, Subscriber, create_key, revoke_key

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "relay"), str(TESTS / "memory_agent")]

from relays import RelayProcess, mapping, wait_until  # noqa: E402
from served_gateway import gateway_without_ray  # noqa: E402
from served_host import absent_embedder, client_of_host  # noqa: E402

MESSAGES = 900
METHODS = {name for name, verb in BY_NAME.items() if not verb.is_inner}
HOST_METHODS = {name for name, verb in BY_NAME.items() if verb.answered_by == "memory"}
ROOM_BYTES = 150 << 20
"""The maximum growth of a process: 170 kB per message, more than it should need."""
CODES = {b"unauthorized", b"user_not_allowed", b"protocol", b"invalid_input"}
SECRET_OF_BOB = "the vault code is 4711-zebra"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="junk-") as made:
        yield Path(made)


def junk(seed: int, samples: tuple[bytes, ...]) -> bytes:
    random = Random(seed)
    return random.randbytes(random.randrange(400)) if seed % 7 == 0 else mutate(samples, "msgpack", seed)


@contextmanager
def connected(endpoint: str, kind: int = zmq.DEALER) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        socket.sndtimeo = socket.rcvtimeo = 20_000
        socket.connect(endpoint)
        yield socket


def frames_of(seed: int, token: bytes) -> list[bytes]:
    """Return a correlation id, a body and a token; sometimes too few or too many frames, or an unknown token."""
    random = Random(seed)
    frames = [seed.to_bytes(8, "big"), junk(seed, REQUESTS), token]
    change = random.randrange(12)
    if change == 0:
        frames = frames[: random.randrange(1, 3)]
    elif change == 1:
        frames += [b"more"] * random.randrange(1, 200)
    elif change == 2:
        frames[2] = random.randbytes(43)
    return frames


def test_a_relay_that_receives_junk_continues_and_reveals_nothing_of_bob_to_alice(folder: Path) -> None:
    settings = RelaySettings(broker=BrokerSettings(pub_bind=("tcp://127.0.0.1:*",)))
    data_dir = folder / "data"
    with (
        RelayProcess(data_dir, settings) as relay,
        connected(relay.endpoints.ingest) as asker,
        connected(relay.ready["pub"][0], zmq.PUB) as emitter,
        connected(relay.endpoints.feed, zmq.SUB) as listener,
    ):
        process = psutil.Process(relay.ready["pid"])
        token = create_key(data_dir, "alice", "alice", frozenset({Scope.PUBLISH, Scope.RECALL})).token.encode()
        with Publisher(relay.endpoints.ingest) as publisher:
            publisher.publish(mapping(1, user_id="bob", payload={"text": SECRET_OF_BOB}))
            assert publisher.flush().acked == 1
        before_bytes = process.memory_info().rss
        for seed in range(MESSAGES):
            asker.send_multipart(frames_of(seed, token))
            emitter.send_multipart([junk(seed, PACKED), junk(seed + 1, (*PACKED, *EVENTS))][seed % 3 == 0 :])
            listener.subscribe(junk(seed, REQUESTS)[:200])
        asker.send_multipart([b"last", REQUESTS[-1], token])
        replies = []
        while not replies or replies[-1][0] != b"last":
            replies.append(asker.recv_multipart())
        assert not [reply for reply in replies if b"4711-zebra" in b"".join(reply)]
        assert len(replies) > MESSAGES // 2
        with (
            Subscriber(*relay.endpoints, consumer="reader") as subscriber,
            Publisher(relay.endpoints.ingest) as publisher,
        ):
            counts = subscriber.stats().counts
            assert counts["unreadable_requests"] > MESSAGES // 10
            assert counts["unauthorized"] > 0
            wait_until(lambda: subscriber.stats().counts.get("pub_malformed", 0) > 0)
            publisher.publish(mapping(2))
            assert publisher.flush().acked == 1
            assert SECRET_OF_BOB.encode() in subscriber.fetch(0, 1, user_id="bob").entries[0].data
        assert process.memory_info().rss - before_bytes < ROOM_BYTES
        assert relay.stop() == 0


def test_no_producer_can_end_the_relay_by_exhausting_its_numbers(folder: Path) -> None:
    """Regression: the refusal of a number beyond 64 bits could not be encoded, which stopped the relay."""
    with RelayProcess(folder / "data") as relay, connected(relay.endpoints.ingest) as asker:
        token = create_key(folder / "data", "a", "alice", frozenset({Scope.PUBLISH})).token.encode()
        publish = {"op": "publish", "producer_id": "q", "attempt": 1, "events": [PACKED[0], PACKED[1]]}
        for epoch, seq in ((7, 2**64 - 1), (6, 2**64 - 1), (7, 2**62), (6, 2**62), (7, -1)):
            body = msgspec.msgpack.encode({**publish, "epoch": epoch, "first_seq": seq, "base_seq": seq})
            asker.send_multipart([b"c", body, token])
            assert asker.recv_multipart()
        asker.send_multipart([b"last", REQUESTS[-1], token])
        assert asker.recv_multipart()[0] == b"last"
        assert relay.stop() == 0


def test_a_host_that_receives_junk_continues_and_reveals_nothing_of_bob_to_alice(folder: Path) -> None:
    methods = sorted(HOST_METHODS)
    internal = []
    with (
        absent_embedder(folder) as embedder,
        client_of_host(folder, embedder, "bob") as client,
        connected(f"ipc://{folder}/gateway.sock") as asker,
    ):
        kept = client.remember(SECRET_OF_BOB)
        before_bytes = psutil.Process().memory_info().rss
        for seed in range(MESSAGES // 3):
            method = methods[seed % len(methods)]
            params = junk(seed, PARAMS)
            body = junk(seed, (params,)) if seed % 5 == 0 else encode_request(method, params)
            asker.send_multipart([seed.to_bytes(4, "big"), body])
            reply = asker.recv_multipart()
            assert reply[0] == seed.to_bytes(4, "big")
            assert b"4711-zebra" not in reply[1]
            if b"internal" in reply[1]:
                internal.append((seed, method, reply[1][:400]))
        assert internal == []
        assert [memory.record.id for memory in client.recall("vault code", mode="lexical").memories] == [kept.id]
        assert psutil.Process().memory_info().rss - before_bytes < ROOM_BYTES


def any_request(seed: int, token: str, replayed: bytes) -> bytes:
    """Return a request that is junk, truncated, of an unknown version, for bob, or bob's own but with another token."""
    random = Random(seed)
    method = sorted(METHODS)[seed % len(METHODS)]
    try:
        request = Request(
            method=method,
            user_id=random.choice(("alice", "bob", "default")),
            params=msgspec.Raw(junk(seed, PARAMS)),
            token=token,
            deadline_ms=random.choice((300.0, 0.0, -1.0)),
            version=random.choice((1, 2, 3, -1, 2**63 - 1)),
        )
        whole = encode(request)
    except (TypeError, ValueError):
        return junk(seed, (replayed,))
    return (whole, whole, whole[: random.randrange(len(whole))], replayed, junk(seed, (whole, replayed)))[seed % 5]


def test_a_gateway_that_receives_junk_continues_and_reveals_nothing_of_bob_to_alice(folder: Path) -> None:
    """Includes a peer that replays bob's request with alice's token, an unknown token or a revoked token."""
    with absent_embedder(folder) as embedder, gateway_without_ray(folder / "d", embedder) as served:
        tokens = {name: create_key(served.data_dir, name, name, ALL_SCOPES).token for name in ("alice", "bob", "gone")}
        revoke_key(served.data_dir, "gone")
        vault = msgspec.msgpack.encode({"query": "vault code", "mode": "lexical"})
        with (
            MemoryClient("bob", endpoint=served.gateway, token=tokens["bob"]) as bob,
            MemoryClient("alice", endpoint=served.gateway, token=tokens["alice"]) as alice,
            connected(served.gateway) as asker,
            connected(served.gateway) as flooder,
        ):
            kept = bob.remember(SECRET_OF_BOB)
            before_bytes = psutil.Process().memory_info().rss
            flooder.send_multipart([b"c", bytes((64 << 20) + 1)])
            replies = []
            for seed in range(MESSAGES // 3):
                token = (tokens["alice"], tokens["gone"], "x" * 43, "")[seed % 11 % 4]
                replayed = encode(Request(method="recall", user_id="bob", params=msgspec.Raw(vault), token=token))
                body = bytes(4 << 20) if seed % 100 == 0 else any_request(seed, token, replayed)
                correlation = seed.to_bytes(4, "big")
                asker.send_multipart([correlation])  # cannot be answered
                asker.send_multipart([correlation, body, *[b"more"] * (seed % 40 == 0) * 100])
                replies.append(asker.recv_multipart())
                assert replies[-1][0] == correlation
            told = b"".join(b"".join(reply) for reply in replies)
            assert b"4711-zebra" not in told
            assert kept.id.encode() not in told
            assert b"internal error" not in told
            assert {code for code in CODES if code in told} == CODES
            assert [memory.record.id for memory in bob.recall("vault code", mode="lexical").memories] == [kept.id]
            mine = alice.remember("the mutex is mine")
            assert [one.record.id for one in alice.recall("the mutex", mode="lexical").memories][:1] == [mine.id]
            assert psutil.Process().memory_info().rss - before_bytes < ROOM_BYTES


def encode_request(method: str, params: bytes) -> bytes:
    try:
        return encode(Request(method=method, user_id="alice", params=msgspec.Raw(params)))
    except (TypeError, ValueError):
        return params
