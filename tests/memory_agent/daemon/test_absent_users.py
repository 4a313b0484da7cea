"""Test that reads for users without a store get empty answers and create nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from served_gateway import Served, gateway_in_new_folder

from memory_agent import Memory, MemoryClient, MemoryStats
from memory_agent.errors import InvalidInputError, RunUnknownError, StoreError
from memory_agent.learning import read_export
from memory_agent.records.memories import MemoryMap, SessionPage
from memory_agent.storage.folders import known_users, user_folder
from relay import ALL_SCOPES, create_key


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with gateway_in_new_folder() as served:
        yield served


@pytest.fixture
def absent(served: Served) -> Iterator[MemoryClient]:
    with MemoryClient("alcie", data_dir=served.data_dir, endpoint=served.gateway) as client:
        yield client


READS: list[tuple[Callable[[MemoryClient], Any], object]] = [
    (lambda client: client.recall("the proxy").memories, ()),
    (lambda client: client.recall("the proxy", context_tokens=100).context, ""),
    (lambda client: client.recall("the proxy").context, None),
    (lambda client: client.get(["01KHJY9080NWG22H9Q8BBD7B80"]), []),
    (lambda client: (client.stats().user_id, client.stats().memories), ("alcie", 0)),
    (lambda client: client.stats().disk_bytes, 0),
    (lambda client: client.sessions(), SessionPage(sessions=(), total=0)),
    (lambda client: client.map(), MemoryMap()),
    (lambda client: client.runs.list(), []),
    (lambda client: client.runs.similar("the proxy"), []),
    (lambda client: client.runs.get("run-7"), None),
    (lambda client: (client.sona.status().user_id, client.sona.status().gate.state), ("alcie", "shadow")),
    (lambda client: read_export(client.sona.export()).runs, []),
    (lambda client: erased(client, session_id="s-1"), (True, 0, 0)),
    (lambda client: erased(client, ["01KHJY9080NWG22H9Q8BBD7B80"], dry_run=True), (False, 0, 0)),
]


def erased(client: MemoryClient, *named: Any, **more: Any) -> tuple[bool, int, int]:
    receipt = client.erasure.erase(*named, **more)
    return receipt.complete, receipt.memories, receipt.events


@pytest.mark.parametrize(("read", "nothing"), READS)
def test_a_read_of_a_mistyped_user_is_empty_and_creates_nothing(
    served: Served, absent: MemoryClient, read: Callable[[MemoryClient], Any], nothing: object
) -> None:
    assert read(absent) == nothing
    assert "alcie" not in known_users(served.data_dir)
    assert not (served.data_dir / "erasures").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda client: client.recall(""),
        lambda client: client.recall("the proxy", top_k=0),
        lambda client: client.runs.list(limit=0),
        lambda client: client.runs.get(""),
        lambda client: client.erasure.erase(session_id=" "),
    ],
)
def test_wrong_requests_are_refused_as_for_a_known_user(
    served: Served, absent: MemoryClient, wrong: Callable[[MemoryClient], Any]
) -> None:
    with MemoryClient("known", data_dir=served.data_dir, endpoint=served.gateway) as known:
        known.remember("so that this user exists")
        with pytest.raises(InvalidInputError) as of_known:
            wrong(known)
    with pytest.raises(InvalidInputError) as of_absent:
        wrong(absent)
    assert of_absent.value.args == of_known.value.args


def test_a_first_recall_accepts_feedback_and_a_run_can_begin(served: Served) -> None:
    """A planner recalls before anything is stored, and then works as usual."""
    with MemoryClient("newcomer", data_dir=served.data_dir, endpoint=served.gateway) as client:
        recall_id = client.recall("fix the proxy").recall_id
        assert client.feedback(recall_id, quality=0.5).credited == ()
        assert "newcomer" not in known_users(served.data_dir)
        run = client.runs.begin("fix the proxy", recall_ids=[recall_id])
        assert client.runs.end(run.id).state == "ended"
        assert client.feedback(recall_id, quality=1.0).trajectory_id == recall_id
        assert [one.id for one in client.runs.list()] == [run.id]


def test_a_run_of_a_user_without_memories_is_unknown_and_leaves_no_folder(served: Served) -> None:
    with MemoryClient("mistyped", data_dir=served.data_dir, endpoint=served.gateway) as client:
        with pytest.raises(RunUnknownError, match="no such run: run-7"):
            client.runs.step("run-7", "Went on")
        with pytest.raises(RunUnknownError, match="no such run: run-7"):
            client.runs.end("run-7")
    assert "mistyped" not in known_users(served.data_dir)


def test_a_recall_for_a_run_wakes_the_user(served: Served) -> None:
    with MemoryClient("runner", data_dir=served.data_dir, endpoint=served.gateway) as client:
        recall_id = client.recall("fix the proxy", by_run="run-1").recall_id
        assert "runner" in known_users(served.data_dir)
        assert client.feedback(recall_id, quality=1.0).quality == 1.0


def test_absent_users_are_isolated_from_each_other(served: Served) -> None:
    own = {"data_dir": served.data_dir, "endpoint": served.gateway}
    with MemoryClient("first", **own) as first, MemoryClient("second", **own) as second:  # type: ignore[arg-type]
        before = second.stats(), second.sona.status()
        recall_id = first.recall("fix the proxy").recall_id
        first.feedback(recall_id, quality=0.5)
        assert second.runs.list() == []
        assert second.runs.get(recall_id) is None
        assert (second.stats(), second.sona.status()) == before
        assert second.sona.status().served == {"baseline": 0, "learned": 0, "interleaved": 0}
        assert {"first", "second"}.isdisjoint(known_users(served.data_dir))
        with pytest.raises(InvalidInputError, match="recall_id"):
            second.feedback(recall_id, quality=0.5)


def test_an_absent_user_sees_its_own_shared_items_and_no_private_ones_of_others(served: Served) -> None:
    """The empty memories use folders named `reads` and `recalls`, which are also valid user names."""
    at = {"data_dir": served.data_dir, "endpoint": served.gateway}
    token = create_key(served.data_dir, "of-reads", "reads", ALL_SCOPES, orgs=frozenset({"acme"})).token
    with (
        MemoryClient("reads", token=token, **at) as author,  # type: ignore[arg-type]
        MemoryClient("stranger", **at) as stranger,  # type: ignore[arg-type]
        MemoryClient("leaver", **at) as leaver,  # type: ignore[arg-type]
    ):
        preview = author.shared.preview("Rules", "Of acme alone", access_policy="org:acme", attachment=b"[rules]")
        item = author.shared.confirm(preview, b"[rules]")
        assert stranger.shared.published() == []
        with pytest.raises(InvalidInputError, match="not a shared item that this user may see"):
            stranger.shared.attachment(item.id)
        own = leaver.shared.confirm(leaver.shared.preview("Staging", "needs the VPN"))
        served.host.sleep("leaver")
        shutil.rmtree(user_folder(served.data_dir, "leaver"))
        assert [one.id for one in leaver.shared.published()] == [own.id]


def test_a_recall_of_an_absent_user_is_logged_once_under_the_users_name(
    absent: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = structlog.testing.LogCapture()
    logger = structlog.wrap_logger(None, processors=[lines], wrapper_class=structlog.BoundLogger)
    for module in ("memory_agent.memory.memory", "memory_agent.daemon.service"):
        monkeypatch.setattr(f"{module}.log", logger)
    monkeypatch.setattr(structlog, "is_configured", lambda: True)
    absent.recall("the proxy")
    absent.get([])  # the request is logged after its reply, but before the next reply
    assert [(line["event"], line["user_id"]) for line in lines.entries] == [("recall.answered", "alcie")]


def test_feedback_of_an_absent_user_is_validated(served: Served) -> None:
    with MemoryClient("third", data_dir=served.data_dir, endpoint=served.gateway) as client:
        recall_id = client.recall("fix the proxy").recall_id
        for wrong in ({"quality": 1.5}, {}):
            with pytest.raises(InvalidInputError):
                client.feedback(recall_id, **wrong)  # type: ignore[arg-type]
        assert "third" not in known_users(served.data_dir)


def test_a_failed_empty_memory_is_replaced(
    served: Served, absent: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Memory] = []
    answer = Memory.stats

    def fail_once(self: Memory, filter: None) -> MemoryStats:
        asked.append(self)
        if len(asked) == 1:
            raise StoreError("EIO")
        return answer(self, filter)

    absent.stats()
    monkeypatch.setattr(Memory, "stats", fail_once)
    assert absent.stats().memories == 0
    assert len({id(memory) for memory in asked}) == 2
