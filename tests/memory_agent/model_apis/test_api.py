"""A faulty provider API: every call ends in time, with an error that states the fix and contains no secret."""

from __future__ import annotations

import gzip
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import msgspec
import pytest
from provider_server import Provider, Reply, answer, drip, drop, hang, raw, serving

from memory_agent.errors import ProviderError, ProviderUnavailableError, SettingsError
from memory_agent.model_apis import ModelEndpoint, open_api
from memory_agent.model_apis.api import ModelApi

KEY = "sk-very-secret"
TEXT = "a text of a user"
Body = dict[str, int]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("TEST_KEY", KEY)
    with serving() as server:
        yield server


@pytest.fixture
def api(provider: Provider) -> Iterator[ModelApi]:
    endpoint = ModelEndpoint(setting="embedder", provider="acme", url=provider.url, key="${TEST_KEY}", timeout_s=20)
    opened = open_api(msgspec.structs.replace(endpoint, answer_bytes=1000, usd_per_million_tokens=2.0))
    yield opened
    opened.close()


def refusal(api: ModelApi, timeout_s: float | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        api.post("/embed", {"input": TEXT}, Body, timeout_s)
    assert KEY not in str(caught.value)
    assert TEXT not in str(caught.value)
    return caught.value


def test_an_answer_is_decoded_and_counted(provider: Provider, api: ModelApi) -> None:
    provider.then(answer({"a": 1}))
    assert api.post("/embed", {"input": TEXT}, Body) == {"a": 1}
    (request,) = provider.requests
    assert (request.path, request.body, request.headers["authorization"]) == (
        "/embed",
        {"input": TEXT},
        f"Bearer {KEY}",
    )
    api.add_tokens(500_000, 500_000)
    counts = api.counts()
    assert (counts.calls, counts.failed, counts.cost_usd, counts.problem) == (1, 0, 2.0, "")


@pytest.mark.parametrize("reply", [hang, drip], ids=["hangs", "answers byte by byte"])
def test_a_call_to_a_slow_server_ends_at_the_deadline(provider: Provider, api: ModelApi, reply: Reply) -> None:
    provider.then(reply)
    error = refusal(api, timeout_s=0.2)
    assert isinstance(error, ProviderUnavailableError)
    assert "no complete answer within 0.2 s" in str(error)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (raw(b"<html>Bad gateway</html>", content_type="text/html; charset=utf-8"), "text/html"),
        (raw(b'{"a": NaN}'), "not the expected JSON"),
        (answer({"a": "b"}), "$"),
        (raw(b'{"a":' * 100_000), "exceeds 1000 bytes"),
        (raw(gzip.compress(b'{"a": 1}'), content_encoding="gzip"), "not the expected JSON"),
        (answer({"error": {"type": "invalid_api_key", "message": f"no such key {KEY}"}}, 401), "${TEST_KEY}"),
        (answer({"error": {"code": f"{KEY}!"}}, 403), "HTTP 403: the key"),
        (answer({"error": 'model "x" not found'}, 404), "embedder.model"),
        (answer({"error": {"status": "INVALID_ARGUMENT"}}, 400), "HTTP 400 INVALID_ARGUMENT"),
        (answer({}, 302, location="http://evil.example"), "redirects are not followed"),
    ],
    ids=[
        "html",
        "nan",
        "other types",
        "too large",
        "compressed",
        "revoked",
        "no right",
        "no model",
        "invalid",
        "moved",
    ],
)
def test_an_unusable_answer_is_refused_at_once(provider: Provider, api: ModelApi, reply: Reply, said: str) -> None:
    provider.then(reply)
    error = refusal(api)
    assert not error.retryable
    assert said in str(error)
    assert len(provider.requests) == 1
    assert api.counts().problem == str(error)


def test_an_overloaded_server_is_called_again(provider: Provider, api: ModelApi) -> None:
    provider.then(drop, answer({}, 429, retry_after="0.01"), answer({}, 503), answer({"a": 1}))
    assert api.post("/embed", {"input": TEXT}, Body) == {"a": 1}
    assert (api.counts().calls, api.counts().retries) == (1, 3)


def test_no_call_is_sent_during_the_pause_that_a_server_requests(provider: Provider, api: ModelApi) -> None:
    provider.then(answer({}, 429, retry_after="900"))
    assert "HTTP 429" in str(refusal(api))
    assert "not called for another" in str(refusal(api))
    assert (len(provider.requests), api.counts().refused) == (1, 1)


def test_three_failures_in_a_row_open_the_circuit(provider: Provider, api: ModelApi) -> None:
    provider.then(answer({}, 404))
    for _ in range(3):
        assert "HTTP 404" in str(refusal(api))
    assert "not called for another" in str(refusal(api))
    assert len(provider.requests) == 3


def test_a_rejected_text_does_not_stop_other_texts(provider: Provider, api: ModelApi) -> None:
    provider.then(*[answer({}, 400)] * 5, answer({"a": 1}))
    for _ in range(5):
        refusal(api)
    assert api.post("/embed", {}, Body) == {"a": 1}


def test_a_cancelled_call_ends_and_leaves_the_others(provider: Provider, api: ModelApi) -> None:
    provider.then(hang, answer({"a": 1}))
    call = api.run(lambda: api.ask("/embed", {}, Body))
    ended = threading.Event()
    call.call_when_done(lambda _: ended.set())
    call.cancel()
    assert ended.wait(10)
    with pytest.raises(CancelledError):
        call.result()
    provider.then(answer({"a": 1}))
    assert api.post("/embed", {}, Body) == {"a": 1}
    assert api.counts().failed == 0


def test_closing_ends_the_calls_in_progress(provider: Provider, api: ModelApi) -> None:
    provider.then(hang)
    call = api.run(lambda: api.ask("/embed", {}, Body))
    api.close()
    with pytest.raises(ProviderUnavailableError, match="closed"):
        call.result()
    assert "closed" in str(refusal(api))


def test_an_unreachable_server_is_named(api: ModelApi) -> None:
    gone = open_api(msgspec.structs.replace(api.endpoint, url="http://127.0.0.1:1"))
    assert "http://127.0.0.1:1 is not reachable" in str(refusal(gone, timeout_s=5))
    gone.close()


def test_a_server_on_this_machine_is_called_without_a_proxy(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    endpoint = ModelEndpoint(setting="embedder", provider="acme", url=provider.url, key="${TEST_KEY}", timeout_s=20)
    opened = open_api(endpoint)
    provider.then(answer({"a": 1}))
    assert opened.post("/embed", {"input": TEXT}, Body) == {"a": 1}
    opened.close()


def test_a_missing_key_is_named_by_its_variable(api: ModelApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY")
    assert "TEST_KEY (embedder.api_key) is not set" in str(refusal(api))
    monkeypatch.setenv("TEST_KEY", f"{KEY}\nx: y")
    assert "does not contain a valid key" in str(refusal(api))


def test_neither_key_nor_text_reaches_a_log(
    provider: Provider, api: ModelApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider.then(answer({"a": 1}))
    api.post("/embed", {"input": TEXT}, Body)
    assert not any(secret in caplog.text for secret in (KEY, TEXT, "authorization"))
    assert KEY not in repr(api.endpoint) + repr(vars(api))


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"url": "api.example.com"}, "judge.url"),
        ({"url": "https://user:secret@example.com"}, "judge.url"),
        ({"url": "https://:secret@example.com"}, "judge.url"),
        ({"url": "https://example.com/v1#secret"}, "judge.url"),
        ({"url": "https://[example.com"}, "judge.url"),
        ({"url": "https://example.com:99999"}, "judge.url"),
        ({"key": "sk-literal"}, "judge.api_key"),
        ({"url": "http://example.com", "key": "${TEST_KEY}"}, "judge.url"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(changed: dict[str, Any], setting: str) -> None:
    fields = {"setting": "judge", "provider": "acme", "url": "https://example.com"} | changed
    with pytest.raises(SettingsError) as caught:
        open_api(msgspec.convert(fields, ModelEndpoint))
    assert caught.value.setting == setting
    assert "secret" not in str(caught.value)
    assert "sk-literal" not in str(caught.value)


def test_the_client_is_imported_only_when_an_api_is_opened() -> None:
    code = (
        "import json, sys; sys.modules['httpx2'] = None\n"
        "import memory_agent.model_apis as apis\n"
        "try: apis.open_api(apis.ModelEndpoint(setting='judge', provider='acme', url='https://example.com'))\n"
        "except apis.ProviderError as error: print(json.dumps(str(error)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == "acme: requires `pip install httpx2`"
