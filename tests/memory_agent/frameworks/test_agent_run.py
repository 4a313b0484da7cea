"""Test the agent run that every adapter uses: recall and outcomes, in event loops, threads and forks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from memory_agent import MemoryClient
from memory_agent.errors import UnavailableError
from memory_agent.frameworks import agent_run
from memory_agent.frameworks.agent_run import AgentRun, current_run_id, in_thread
from tests.end_to_end.conftest import DaemonProcess
from tests.polling import wait_until

REQUEST = "deploy the shop to staging"


@pytest.fixture
def memory(light_daemon: DaemonProcess, user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user, data_dir=light_daemon.data_dir) as memory:
        yield memory


def outcomes(memory: MemoryClient) -> list[tuple[str, str | None, bool]]:
    return [(run.state, run.outcome, run.is_cancelled) for run in memory.runs.list()]


def test_a_run_credits_the_memory_that_its_output_repeats(memory: MemoryClient) -> None:
    record = memory.remember("Staging is reachable through the VPN gateway at Falkenstein")
    for number in range(20):  # words are rare only among other memories
        memory.remember(f"Shop {number} has {number} gigabytes of memory")
    with AgentRun(memory, REQUEST) as run:
        assert "Falkenstein" in run.block
        run.output = "Staging was reachable through the VPN gateway at Falkenstein, so the shop is deployed."
    wait_until(lambda: memory.runs.list()[0].used)  # the daemon's upkeep infers which memories were used
    (ended,) = memory.runs.list()
    assert (ended.outcome, [use.record_id for use in ended.used]) == ("completed", [record.id])


def test_an_error_ends_a_run_as_failed_and_cancellation_as_cancelled(memory: MemoryClient) -> None:
    with pytest.raises(ZeroDivisionError), AgentRun(memory, REQUEST):
        raise ZeroDivisionError("no instances")
    with pytest.raises(KeyboardInterrupt), AgentRun(memory, "roll back"):
        raise KeyboardInterrupt
    assert outcomes(memory) == [("ended", None, True), ("ended", "failed", False)]


def test_a_cancelled_task_ends_its_run_in_any_event_loop(memory: MemoryClient) -> None:
    async def work(begun: asyncio.Event) -> None:
        async with AgentRun(memory, REQUEST):
            begun.set()
            await asyncio.Event().wait()

    async def cancel() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(work(begun))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    asyncio.run(cancel())
    assert outcomes(memory) == [("ended", None, True)] * 2


@pytest.mark.parametrize("error", [None, ZeroDivisionError("no instances")])
def test_a_cancelled_caller_waits_for_its_thread(error: Exception | None) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        go_on.wait()
        ended.set()
        if error is not None:
            raise error

    async def cancel() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
        writing = asyncio.create_task(in_thread(write))
        await asyncio.to_thread(begun.wait)
        writing.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert ended.is_set()

    unretrieved: list[object] = []
    asyncio.run(cancel())
    assert unretrieved == []


def test_recalls_belong_to_the_innermost_open_run_of_their_user(memory: MemoryClient) -> None:
    assert current_run_id(memory) is None
    with AgentRun(memory, REQUEST) as outer:
        with AgentRun(memory, "connect to the VPN", recalls=False) as inner:
            assert current_run_id(memory) == inner.id
            assert current_run_id(MemoryClient("somebody else")) is None
        assert current_run_id(memory) == outer.id
    assert current_run_id(memory) is None


def test_a_long_request_is_cut_and_one_without_text_has_no_run(memory: MemoryClient) -> None:
    memory.remember("Staging needs the VPN")
    with AgentRun(memory, f"{REQUEST}: " + f"{'x' * 200} " * 5_000) as run:
        assert "VPN" in run.block
        run.output = f"{'x' * 200} " * 5_000
    with AgentRun(memory, " \n") as blank:
        assert blank.block == ""
    assert outcomes(memory) == [("ended", "completed", False)]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12: forking a multithreaded process
def test_a_forked_child_shares_no_connection_with_its_parent(memory: MemoryClient) -> None:
    memory.remember("Staging needs the VPN")
    child = os.fork()
    if child == 0:
        try:
            with AgentRun(memory, REQUEST) as run:
                os._exit(0 if "VPN" in run.block else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory.stats().memories == 2


def test_an_answer_is_not_lost_although_its_run_has_ended_meanwhile(memory: MemoryClient) -> None:
    with pytest.warns(RuntimeWarning, match="the outcome of a run was not stored"), AgentRun(memory, REQUEST) as run:
        memory.runs.end(run.id, "failed")


def test_docstring_examples_run(
    light_daemon: DaemonProcess, run_docstrings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(light_daemon.data_dir))
    run_docstrings(agent_run)


def test_without_a_daemon_a_run_says_how_to_start_one(tmp_path: os.PathLike[str]) -> None:
    with (
        pytest.raises(UnavailableError, match="memory-agent serve"),
        AgentRun(MemoryClient(data_dir=tmp_path), REQUEST),
    ):
        pass
