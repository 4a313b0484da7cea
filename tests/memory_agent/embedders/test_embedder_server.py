"""Test the embedder process when it is killed, restarted or orphaned, lacks a model, or receives garbage."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from embedder_inputs import INT8, ServerProcess, StartServer
from provider_server import embeds, serving, vector_of
from stopped_process import stop

from memory_agent.embedders import wire
from memory_agent.embedders.minilm import MiniLM
from memory_agent.embedders.remote import RemoteEmbedder
from memory_agent.embedders.weights import TOKENIZER, WEIGHTS, Model
from memory_agent.errors import EmbedderUnavailableError, InvalidInputError, ModelMissingError, ProtocolError
from memory_agent.settings import EmbedderSettings, OllamaEmbedder
from relay.net import RequestSocket

WAIT_S = 60.0


def poll(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < deadline, "the condition was not met in time"
        threading.Event().wait(0.02)


def test_it_reports_ready_and_ends_on_sigterm(start_server: StartServer) -> None:
    server = start_server()
    assert server.ready["ready"] is True
    assert server.ready["pid"] == server.process.pid
    assert server.ready["model"].startswith("all-MiniLM-L6-v2|53aa51172d142c89|int8|")
    code, log = server.stop()
    assert code == 0
    assert "Traceback" not in log


def test_a_client_may_start_before_the_server(start_server: StartServer, tmp_path: Path, int8_model: MiniLM) -> None:
    embedder = RemoteEmbedder(f"ipc://{tmp_path}/e.sock", timeout_s=WAIT_S)
    answers: list[np.ndarray] = []
    asker = threading.Thread(target=lambda: answers.append(embedder.embed_query("early")))
    asker.start()
    start_server()
    asker.join(WAIT_S)
    assert np.array_equal(answers[0], int8_model.embed("early"))
    embedder.close()


def test_a_client_recovers_when_the_server_was_killed_and_started_again(start_server: StartServer) -> None:
    server = start_server()
    embedder = RemoteEmbedder(server.endpoint, timeout_s=WAIT_S)
    before = embedder.embed_query("through a crash")
    server.kill()
    with pytest.raises(EmbedderUnavailableError):
        embedder.embed_query("nobody is there", timeout_s=0.05)
    start_server()
    assert np.array_equal(embedder.embed_query("through a crash"), before)
    embedder.close()


def test_a_query_in_progress_survives_the_death_of_its_server(start_server: StartServer, int8_model: MiniLM) -> None:
    server = start_server()
    embedder = RemoteEmbedder(server.endpoint, timeout_s=WAIT_S)
    embedder.embed_query("before")
    stop(server.process.pid)
    pending = embedder.begin_query("through a crash")
    server.kill()
    start_server()
    assert np.array_equal(pending.result(), int8_model.embed("through a crash"))
    embedder.close()


def test_the_sockets_of_dropped_queries_are_used_again(shared_server: ServerProcess) -> None:
    embedder = RemoteEmbedder(shared_server.endpoint)
    process = psutil.Process(shared_server.process.pid)
    for number in range(50):
        embedder.begin_query(f"dropped {number}")
        embedder.embed_query(f"asked {number}")
        if number == 0:
            connections = process.num_fds()
    assert process.num_fds() <= connections + 2
    embedder.close()


def test_a_bulk_call_survives_the_death_of_its_server(start_server: StartServer, int8_model: MiniLM) -> None:
    server = start_server()
    embedder = RemoteEmbedder(server.endpoint, bulk_timeout_s=WAIT_S)
    texts = [f"bulk text {number} " + "with some more words " * 2 for number in range(192)]  # three requests
    steps: list[int] = []
    results: list[np.ndarray] = []

    def progress(done: int, _: int) -> None:
        if not steps:
            stop(server.process.pid)  # with two requests in progress
        steps.append(done)

    caller = threading.Thread(target=lambda: results.append(embedder.embed_texts(texts, progress)))
    caller.start()
    poll(lambda: bool(steps))
    server.kill()
    assert steps[-1] < len(texts)
    start_server()
    caller.join(WAIT_S)
    assert np.array_equal(results[0], np.array([int8_model.embed(text) for text in texts]))
    embedder.close()


def test_vectors_of_a_restarted_server_never_get_the_old_stamp(start_server: StartServer) -> None:
    server = start_server(settings=INT8)
    embedder = RemoteEmbedder(server.endpoint, timeout_s=WAIT_S)
    before = embedder.info.stamp
    server.stop()
    server = start_server(settings=msgspec.structs.replace(INT8, passage_prefix="note: "))
    embedder.embed_query("anything")
    assert embedder.info.stamp == server.ready["model"] != before
    embedder.close()


def test_without_a_model_it_reports_that_and_uses_one_that_arrives_later(
    start_server: StartServer, tmp_path: Path, official: Model, int8_model: MiniLM
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    server = start_server(settings=msgspec.structs.replace(INT8, folder=str(folder)))
    assert (server.ready["model"], server.ready["problem"]) == (None, "model_missing")
    embedder = RemoteEmbedder(server.endpoint)
    for ask in (lambda: embedder.embed_query("x"), lambda: embedder.embed_texts(["x"]), lambda: embedder.info):
        with pytest.raises(ModelMissingError, match="does not contain"):
            ask()
    assert official.folder is not None
    for name in (TOKENIZER, WEIGHTS):
        shutil.copyfile(official.folder / name, folder / f"{name}.part")
        (folder / f"{name}.part").rename(folder / name)

    def answers() -> bool:
        try:
            return np.array_equal(embedder.embed_query("x"), int8_model.embed("x"))
        except ModelMissingError:
            return False

    poll(answers)
    embedder.close()


def test_the_client_learns_which_model_was_refused(start_server: StartServer, tmp_path: Path, official: Model) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert official.folder is not None
    shutil.copyfile(official.folder / TOKENIZER, folder / TOKENIZER)
    (folder / WEIGHTS).write_bytes(b"these are not the weights")
    server = start_server(settings=msgspec.structs.replace(INT8, folder=str(folder)))
    assert server.ready["problem"] == "model_checksum"
    embedder = RemoteEmbedder(server.endpoint)
    with pytest.raises(Exception, match=r"model\.safetensors was rejected: SHA-256 is [0-9a-f]{64}, expected 53aa"):
        embedder.embed_query("x")
    embedder.close()


def test_it_ends_when_its_parent_is_killed(tmp_path: Path, model_cache: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'memory_agent.embedders', '--endpoint', sys.argv[1],\n"
        "    '--cache', sys.argv[2], '--parent-pid', str(os.getpid())], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, f"ipc://{tmp_path}/e.sock", str(model_cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    poll(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_bulk_callers_and_queries_of_many_threads_get_their_own_vectors(
    remote: RemoteEmbedder, int8_model: MiniLM
) -> None:
    wrong: list[str] = []

    def work(name: str) -> None:
        texts = [f"{name} text {number}" for number in range(20)]
        for text, vector in zip(texts, remote.embed_texts(texts), strict=True):
            if not np.array_equal(vector, int8_model.embed(text)):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(f"user {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(20):
        text = f"query {number}"
        if not np.array_equal(remote.embed_query(text), int8_model.embed(text)):
            wrong.append(text)
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "frames", [[b""], [b"\xff\xff"], wire.encode_question(wire.QueryQuestion(1.0)), [b"\x80", b"\xff\xfe"]]
)
def test_garbage_is_answered_with_an_error_and_does_not_affect_other_clients(
    shared_server: ServerProcess, remote: RemoteEmbedder, frames: list[bytes]
) -> None:
    socket = RequestSocket(shared_server.endpoint)
    with pytest.raises(ProtocolError):
        wire.decode_answer(socket.request(frames, WAIT_S))
    socket.close()
    assert remote.embed_query(f"still here after {frames}").shape == (384,)


def test_too_many_texts_in_one_request_are_refused(shared_server: ServerProcess) -> None:
    socket = RequestSocket(shared_server.endpoint)
    with pytest.raises(InvalidInputError, match="at most 1024"):
        wire.decode_answer(socket.request(wire.encode_question(wire.BulkQuestion(), ["x"] * 1025), WAIT_S))
    socket.close()


@pytest.mark.parametrize(
    "arguments",
    [["--settings", '{"type": "local", "schema": "int8"}'], ["--settings", '{"type": "local", "scheme": "int4"}']],
)
def test_an_unusable_setting_ends_it_with_an_error_that_names_it(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "memory_agent.embedders", "--endpoint", f"ipc://{tmp_path}/e.sock", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert result.returncode == 2
    assert "sche" in result.stderr
    assert "Traceback" not in result.stderr


def test_it_logs_neither_texts_nor_vectors(start_server: StartServer) -> None:
    server = start_server()
    embedder = RemoteEmbedder(server.endpoint)
    embedder.embed_texts(["a-secret-text"])
    embedder.embed_query("a-secret-query")
    embedder.close()
    _, log = server.stop()
    assert "model.loaded" in log
    assert "secret" not in log


def test_it_stays_small_under_load(shared_server: ServerProcess, remote: RemoteEmbedder) -> None:
    remote.embed_texts([f"{number} " + "word " * 300 for number in range(40)])
    for number in range(10):
        remote.embed_query(f"{number} " + "other " * 300)
    assert psutil.Process(shared_server.process.pid).memory_info().rss < 200e6


def test_it_serves_a_remote_model_and_the_former_embedder(tmp_path: Path) -> None:
    kind = OllamaEmbedder(passage_prefix="", query_prefix="")
    with serving() as provider:
        provider.then(embeds(kind))
        own, former = (
            msgspec.json.encode(one).decode()
            for one in (msgspec.structs.replace(kind, url=provider.url), EmbedderSettings(allow_download=False))
        )
        process = ServerProcess(f"ipc://{tmp_path}/e.sock", "--settings", own, "--former", former)
        client = RemoteEmbedder(process.endpoint)
        before = client.former()
        expected = np.array(vector_of("harbour"), np.float32)
        np.testing.assert_allclose(client.embed_texts(["harbour"])[0], expected / np.linalg.norm(expected), atol=1e-6)
        assert client.embed_query("harbour").shape == (len(expected),)
        calls = client.provider_calls()
        assert calls is not None
        assert (calls.provider, calls.failed) == ("ollama", 0)
        assert before.embed_query("harbour").shape == (384,)
        assert (client.info.ndim, before.info.ndim) == (len(expected), 384)
        client.close()
        before.close()
        assert process.stop()[0] == 0
