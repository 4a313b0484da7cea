"""Test the daemon as users see it: the path from a published event to a recall, and what can fail along the way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from memory_agent import AsyncMemoryClient, MemoryClient, MemoryFilter, MemoryProvider
from memory_agent.errors import InvalidInputError, UnauthorizedError, UnavailableError, UnknownMethodError
from memory_agent.verbs.protocol import Request, decode_reply, encode
from relay import Publisher, relay_endpoints
from relay.net import RequestSocket

from .conftest import DaemonProcess, environment, short_folder


@pytest.fixture
def publisher(daemon: DaemonProcess) -> Iterator[Publisher]:
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as publisher:
        yield publisher


def client(daemon: DaemonProcess, user_id: str) -> MemoryClient:
    return MemoryClient(user_id, data_dir=daemon.data_dir)


def said(user_id: str, text: str, **fields: object) -> dict[str, object]:
    return {"event_type": "chat.user_msg", "user_id": user_id, "payload": {"text": text}, **fields}


def settle(daemon: DaemonProcess, publisher: Publisher, timeout_s: float = 60.0) -> None:
    """Wait until every published event is recallable or quarantined."""
    report = publisher.flush(timeout_s)
    assert not report.pending
    with client(daemon, "anybody") as asker:
        asker.wait(report.acked_through, timeout_s)


def texts(daemon: DaemonProcess, user_id: str, query: str) -> list[str]:
    with client(daemon, user_id) as asker:
        return [memory.record.text for memory in asker.recall(query, top_k=10).memories]


def test_an_event_becomes_a_memory_that_a_recall_finds(daemon: DaemonProcess, publisher: Publisher) -> None:
    publisher.publish(said("ada", "the login page logs people out after a minute", session_id="s-1"))
    publisher.publish(said("ada", "make the export of invoices faster", session_id="s-2"))
    settle(daemon, publisher)
    with client(daemon, "ada") as asker:
        assert isinstance(asker, MemoryProvider)
        result = asker.recall("users are signed out too early", top_k=1)
        assert result.memories[0].record.text == "the login page logs people out after a minute"
        assert result.degraded == ()
        assert result.memories[0].record.embedding is None
        only = asker.recall("users are signed out too early", filter=MemoryFilter(session_id="s-2"), min_relevance=0)
        assert [memory.record.session_id for memory in only.memories] == ["s-2"]
        with_vector = asker.recall("invoices", top_k=1, with_embedding=True).memories[0].record.embedding
        assert with_vector is not None
        assert len(with_vector) == 384


def test_a_message_published_before_the_recall_is_not_its_answer(daemon: DaemonProcess, publisher: Publisher) -> None:
    """As real systems do, publish a text, recall with the same text before planning, and recall once more."""
    answer, question = "the cron job of the ferry times needs the harbour's VPN", "why do the ferry times not arrive?"
    week_ago = (datetime.now(UTC) - timedelta(days=7)).isoformat()
    publisher.publish(said("mara", answer, session_id="mara-1", timestamp=week_ago))
    publisher.publish(said("mara", question, session_id="mara-1", timestamp=week_ago))
    settle(daemon, publisher)
    with client(daemon, "mara") as asker:
        caller = {"by_session": "mara-2", "by_event": "mara-asks", "by_run": "mara-run"}
        before = asker.recall(question, **caller)
        publisher.publish(said("mara", question, session_id="mara-2", event_id="mara-asks"))
        plan = {"objective": question, "run_id": "mara-run"}
        publisher.publish(
            {"event_type": "conductor.run.started", "user_id": "system", "payload": plan, "session_id": "mara-2"}
        )
        settle(daemon, publisher)
        for options, excluded in (
            (caller, {"event": 1, "run": 1}),
            ({}, {"echo": 2}),
            ({"by_session": "mara-2"}, {"session": 2}),
        ):
            after = asker.recall(question, **options)
            assert [found.record.id for found in after.memories] == [found.record.id for found in before.memories]
            assert {found.record.text for found in after.memories} == {answer, question}
            assert {found.record.session_id for found in after.memories} == {"mara-1"}
            assert after.excluded == excluded


def test_a_user_never_sees_another_users_memories(daemon: DaemonProcess, publisher: Publisher) -> None:
    publisher.publish(said("eve-1", "the vault code is on the yellow note"))
    publisher.publish(said("eve-2", "water the plants on friday"))
    settle(daemon, publisher)
    both = "the code of the vault on the yellow note, and water for the plants on friday"
    assert texts(daemon, "eve-1", both) == ["the vault code is on the yellow note"]
    assert texts(daemon, "eve-2", both) == ["water the plants on friday"]


def test_a_conductor_that_publishes_as_system_reaches_the_owner_of_the_run(
    daemon: DaemonProcess, publisher: Publisher
) -> None:
    run = {"run_id": "run-grace-1"}
    before = {
        "event_type": "conductor.run.started",
        "user_id": "system",
        "payload": {"objective": "Plan the move of the billing tables", **run},
    }
    publisher.publish(before)
    publisher.publish(said("grace", "please move the billing tables", payload={"text": "please move it all", **run}))
    after = {
        "event_type": "conductor.run.completed",
        "user_id": "system",
        "actor_id": "conductor:run-grace-1",
        "payload": {"summary": "Moved the billing tables with no downtime"},
    }
    publisher.publish(after)
    settle(daemon, publisher)
    found = texts(daemon, "grace", "billing tables")
    assert any("Plan the move of the billing tables" in text for text in found)
    assert any("Moved the billing tables with no downtime" in text for text in found)
    assert texts(daemon, "system", "billing tables") == []


def test_the_same_event_twice_is_one_memory(daemon: DaemonProcess, publisher: Publisher) -> None:
    event = said("ivan", "rotate the signing keys every quarter", event_id="ivan-1")
    publisher.publish(event)
    publisher.publish(event)
    settle(daemon, publisher)
    with Publisher(relay_endpoints(daemon.data_dir).ingest) as again:
        again.publish(event)
        report = again.flush()
        assert (report.acked, report.duplicates) == (0, 1)
        settle(daemon, again)
    assert len(texts(daemon, "ivan", "signing keys")) == 1


def test_a_remembered_fact_can_be_read_and_forgotten(daemon: DaemonProcess) -> None:
    with client(daemon, "joan") as asker:
        record = asker.remember("The staging database is restored at midnight", tags=["staging"], title="Restore")
        assert [found.text for found in asker.get([record.id])] == [record.text]
        assert asker.stats().memories == 1
        assert asker.forget([record.id, "01ARZ3NDEKTSV4RRFFQ69G5FAV"]) == 1
        assert asker.recall("staging database").memories == ()


def test_the_async_client_answers_many_recalls_at_a_time(daemon: DaemonProcess) -> None:
    async def scenario() -> list[int]:
        async with AsyncMemoryClient("kate", data_dir=daemon.data_dir) as asker:
            await asker.remember("The ferry leaves at seven")
            results = await asyncio.gather(*(asker.recall("when does the ferry leave") for _ in range(20)))
            return [len(result.memories) for result in results]

    assert asyncio.run(scenario()) == [1] * 20


ACTOR_PROVIDER = """
import sys
from memory_agent import ActorMemoryProvider, MemoryProvider, join_ray
import ray
import psutil
join_ray(sys.argv[1], namespace="somebody-else")
listening = [one.laddr.ip for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
print(sorted({address.removeprefix("::ffff:") for address in listening}))
provider = ActorMemoryProvider("liam", data_dir=sys.argv[1])
assert isinstance(provider, MemoryProvider)
found = provider.recall("where are the skis")
print([memory.record.text for memory in found.memories])
run = provider.runs.begin("Fetch the skis", recall_ids=[found.recall_id])
provider.runs.end(run.id, summary="Found them behind the boxes")
report = provider.feedback(found.recall_id, [found.memories[0].record.id], 1.0)
print(report.trajectory_id == run.id, report.quality, [used.credit for used in provider.runs.get(run.id).used])
provider.close()
ray.shutdown()
"""


def test_a_planner_inside_ray_asks_the_actor_itself(daemon: DaemonProcess) -> None:
    with client(daemon, "liam") as asker:
        asker.remember("The skis are in the attic behind the boxes")
    command = [sys.executable, "-c", ACTOR_PROVIDER, str(daemon.data_dir)]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    listens, asked, judged = result.stdout.splitlines() or [result.stderr, "", ""]
    assert listens in ("['127.0.0.1']", "[]"), result.stderr
    assert (asked, judged) == ("['The skis are in the attic behind the boxes']", "True 1.0 [1.0]"), result.stderr


@pytest.mark.parametrize("user_id", ["../x", "", "a" * 300, "a/b", "a\0b"])
def test_an_unsafe_user_id_is_refused_by_name(daemon: DaemonProcess, user_id: str) -> None:
    with pytest.raises(InvalidInputError) as caught, client(daemon, user_id) as asker:
        asker.recall("anything")
    assert caught.value.field == "user_id"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"query": ""}, "query"), ({"query": "x", "top_k": 0}, "top_k"), ({"query": "x", "mode": "psychic"}, "mode")],
)
def test_a_bad_argument_is_named(daemon: DaemonProcess, arguments: dict[str, object], field: str) -> None:
    with client(daemon, "mia") as asker, pytest.raises(InvalidInputError) as caught:
        asker.recall(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_request_without_the_token_is_refused(daemon: DaemonProcess) -> None:
    with (
        MemoryClient("mia", data_dir=daemon.data_dir, token="guess") as asker,
        pytest.raises(UnauthorizedError),
    ):
        asker.stats()


def test_an_unknown_method_and_noise_get_an_answer(daemon: DaemonProcess) -> None:
    token = (daemon.data_dir / "token").read_text(encoding="utf-8").strip()
    socket = RequestSocket(daemon.ready["endpoints"]["gateway"])
    reply = socket.request(encode(Request(method="dance", token=token)), 5.0)
    with pytest.raises(UnknownMethodError):
        decode_reply(reply[0], int)
    assert b"protocol" in socket.request(b"\xc1 noise", 5.0)[0]
    socket.close()


def test_the_token_and_the_sockets_are_private(daemon: DaemonProcess) -> None:
    assert (daemon.data_dir / "token").stat().st_mode & 0o777 == 0o600
    assert (daemon.data_dir / "run").stat().st_mode & 0o777 == 0o700


def test_a_second_daemon_on_the_same_folder_is_refused(daemon: DaemonProcess) -> None:
    command = [sys.executable, "-m", "memory_agent", "serve", "--data-dir", str(daemon.data_dir)]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert f"process {daemon.pid}" in result.stderr


def test_a_listener_that_others_could_reach_is_refused(daemon: DaemonProcess) -> None:
    command = [sys.executable, "-m", "memory_agent", "serve", "--data-dir", str(daemon.data_dir / "elsewhere")]
    result = subprocess.run(
        [*command, "--listen", "tcp://0.0.0.0:0"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "daemon.listen" in result.stderr


def test_memory_text_and_tokens_never_reach_the_log(daemon: DaemonProcess, publisher: Publisher) -> None:
    publisher.publish(said("nina", "the secret ingredient is cardamom"))
    settle(daemon, publisher)
    assert texts(daemon, "nina", "which secret ingredient was it") == ["the secret ingredient is cardamom"]
    log = daemon.log()
    token = (daemon.data_dir / "token").read_text(encoding="utf-8").strip()
    assert "nina" in log
    assert "cardamom" not in log
    assert "secret ingredient" not in log
    assert token not in log


def test_without_a_daemon_the_error_says_how_to_start_one() -> None:
    with (
        short_folder() as folder,
        MemoryClient(data_dir=folder) as asker,
        pytest.raises(UnavailableError, match="memory-agent serve"),
    ):
        asker.stats()
