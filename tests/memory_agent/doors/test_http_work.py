"""Test streamed responses over HTTP: progress during the work, then the result or the problem."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from http_caller import Answer, HttpCaller
from served_gateway import Served, gateway_in_new_folder, gateway_without_ray
from served_host import absent_embedder

from memory_agent import Memory
from memory_agent.doors.http.streams import Work
from memory_agent.embedders import Embedder
from memory_agent.errors import UnavailableError
from memory_agent.settings import DaemonSettings, HttpSettings, Settings
from relay import Scope, create_key

STREAM = "text/event-stream"
PAUSE_S = 0.01


SETTINGS = Settings(daemon=DaemonSettings(http=HttpSettings(heartbeat_s=0.05)))


@pytest.fixture(scope="module")
def served(embedder: Embedder) -> Iterator[Served]:
    with gateway_in_new_folder(embedder, settings=SETTINGS) as served:
        yield served


def events_in(frames: bytes) -> list[tuple[str, Any]]:
    """Return the frames' names and data."""
    said = [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in frames.decode().split("\n\n")[:-1]]
    return [(frame["event"], json.loads(frame["data"])) for frame in said]


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


def test_a_stream_ends_with_the_same_result_as_plain_json(caller: HttpCaller) -> None:
    known = caller.post("remember", {"user_id": "ada", "text": "The deploy needs the VPN"}).json()
    for accept in (STREAM, f"{STREAM}; q=0.9, application/json; q=0.1", "Text/Event-Stream,*/*"):
        answer = caller.post("get", {"user_id": "ada", "ids": [known["id"]]}, Accept=accept)
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, STREAM)
        assert events_in(answer.body)[-1] == ("result", [known])
    for accept in ("*/*", f"application/json, {STREAM}", ""):
        assert caller.post("get", {"user_id": "ada", "ids": [known["id"]]}, Accept=accept).json() == [known]


def test_an_early_refusal_has_a_status_and_is_not_a_stream(served: Served, caller: HttpCaller) -> None:
    assert refused(caller.post("recall", {"query": "x", "top_k": 0}, Accept=STREAM)) == (422, "invalid_input")
    assert refused(caller.post("no_verb", {}, Accept=STREAM)) == (404, "unknown_method")
    token = create_key(served.data_dir, "reader", "ada", frozenset({Scope.RECALL})).token
    reader = HttpCaller(served.http, token)
    assert refused(reader.post("compact", Accept=STREAM)) == (403, "scope_missing")
    reader.close()


def test_embedding_again_is_followed_to_its_end(tmp_path: Path, embedder: Embedder) -> None:
    with absent_embedder(tmp_path) as absent, Memory.open(tmp_path / "users" / "ida", embedder=absent) as memory:
        for number in range(3):
            memory.remember(f"Service {number} needs the VPN")
    with (
        gateway_without_ray(tmp_path, embedder, settings=SETTINGS) as served,
        closing(HttpCaller(served.http, served.token)) as caller,
    ):
        said = events_in(caller.post("rebuild", {"user_id": "ida", "vectors": True}, Accept=STREAM).body)
        assert said[-1] == ("result", 3)
        assert [(name, data["waiting"]) for name, data in said[:-1]][:1] == [("progress", 3)]
        stats = caller.post("stats", {"user_id": "ida"}).json()
        assert (stats["waiting"], stats["without_vector"]) == (0, 0)


async def frames_of(frames: AsyncGenerator[bytes], most: int = 1_000) -> list[tuple[str, Any]]:
    said: list[bytes] = []
    async for frame in frames:
        said.append(frame)
        if len(said) == most:
            break
    await frames.aclose()
    return events_in(b"".join(said))


def test_progress_is_sent_until_the_work_ends() -> None:
    async def go() -> None:
        let_end = asyncio.Event()

        async def answer() -> bytes:
            await let_end.wait()
            return b'{"bytes_before":7,"bytes_after":3}'

        work = Work(answer(), PAUSE_S)
        await work.raise_early()
        frames = work.frames(None)
        before = [events_in(await anext(frames))[0] for _ in range(3)]
        assert [name for name, _ in before] == ["progress"] * 3
        elapsed = [said["elapsed_ms"] for _, said in before]
        assert elapsed == sorted(elapsed)
        assert elapsed[-1] > 0
        assert {said["waiting"] for _, said in before} == {None}
        let_end.set()
        assert (await frames_of(frames))[-1] == ("result", {"bytes_before": 7, "bytes_after": 3})

    asyncio.run(go())


def test_background_work_counts_down_before_the_result() -> None:
    async def go() -> None:
        left = iter([30, 20, 20, 0])

        async def answer() -> bytes:
            return b"30"

        async def waiting() -> int:
            return next(left)

        work = Work(answer(), PAUSE_S)
        await work.raise_early()
        said = await frames_of(work.frames(waiting))
        assert [data["waiting"] for name, data in said if name == "progress"] == [30, 20, 20]
        assert said[-1] == ("result", 30)

    asyncio.run(go())


def test_a_failure_after_a_while_is_a_problem() -> None:
    async def go() -> None:
        async def answer() -> bytes:
            await asyncio.sleep(5 * PAUSE_S)
            raise UnavailableError("the disk went away")

        *before, (name, problem) = await frames_of(Work(answer(), PAUSE_S).frames(None))
        assert {said for said, _ in before} == {"progress"}
        assert (name, problem["code"], problem["status"], problem["retryable"]) == ("problem", "unavailable", 503, True)

    asyncio.run(go())


def test_an_error_before_any_progress_is_raised() -> None:
    async def go() -> None:
        async def answer() -> bytes:
            raise UnavailableError("the disk went away")

        with pytest.raises(UnavailableError):
            await Work(answer(), PAUSE_S).raise_early()

    asyncio.run(go())


def test_work_continues_after_its_client_has_gone() -> None:
    async def go() -> None:
        let_end, ended = asyncio.Event(), asyncio.Event()

        async def answer() -> bytes:
            await let_end.wait()
            ended.set()
            return b"1"

        await frames_of(Work(answer(), PAUSE_S).frames(None), most=1)
        let_end.set()
        await asyncio.wait_for(ended.wait(), 10.0)

    asyncio.run(go())


def test_an_error_of_work_without_a_client_is_not_logged_with_its_text() -> None:
    async def go() -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        failing = asyncio.Event()

        async def fail() -> bytes:
            await failing.wait()
            raise UnavailableError("what a caller said")

        frames = Work(fail(), PAUSE_S).frames(None)
        await anext(frames)
        await frames.aclose()
        failing.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        return said

    assert asyncio.run(go()) == []
