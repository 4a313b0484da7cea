"""Test that a client's request yields one trace across the door, the host and the embedder, and that spans contain no
content.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from http_caller import HttpCaller
from trace_collector import Collector, lineage

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError
from memory_agent.layout import Layout
from memory_agent.verbs.params import RecallParams
from memory_agent.verbs.protocol import decode_reply, encode
from memory_agent.verbs.table import BY_NAME
from relay.net import RequestSocket

from .conftest import DaemonProcess, environment, short_folder

pytestmark = pytest.mark.slow

SECRET = "the wombat sleeps in cellar nine"
QUERY = "where does the wombat sleep?"
PARENT = "b7ad6b7169203331"
PROGRAM = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from memory_agent import AsyncMemoryClient, MemoryAgentError, MemoryClient, trace_clients

data_dir, url, text, query = sys.argv[1:]
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url + "/v1/traces")))
trace.set_tracer_provider(provider)
trace_clients()
found = {}

def in_agent(name, act):
    with trace.get_tracer("agent").start_as_current_span("agent") as span:
        found[name] = f"{span.get_span_context().trace_id:032x}"
        act()

async def recall():
    async with AsyncMemoryClient("ada", data_dir=data_dir) as client:
        assert (await client.recall(query, deadline_ms=60_000)).memories

with MemoryClient("ada", data_dir=data_dir) as client:
    def fail():
        try:
            client.recall(query, top_k=-1)
        except MemoryAgentError:
            pass
    in_agent("remember", lambda: client.remember(text))
    in_agent("recall", lambda: client.recall(query, deadline_ms=60_000))
    in_agent("failed", fail)
in_agent("async", lambda: asyncio.run(recall()))
provider.shutdown()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def traced(collector: Collector) -> Iterator[DaemonProcess]:
    """A daemon that traces every request, and whose user `ada` has a memory."""
    settings = (f"tracing.endpoint={collector.url}", "tracing.interval_s=0.1")
    with short_folder() as folder, DaemonProcess(Path(folder), *settings, light=True).running() as process:
        yield process


@pytest.fixture(scope="module", autouse=True)
def program(traced: DaemonProcess, collector: Collector) -> dict[str, str]:
    """Run a program that calls clients within its own spans; return the ids of its traces."""
    command = [sys.executable, "-c", PROGRAM, str(traced.data_dir), collector.url, SECRET, QUERY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["recall", "async"])
def test_a_recall_is_one_trace_from_the_programs_span_to_the_embedder(
    collector: Collector, program: dict[str, str], name: str
) -> None:
    spans = collector.trace(program[name], 6)
    tree = ["host recall", "daemon recall", "door recall", "search_memory", "agent"]
    assert lineage(spans, "embedder query") == tree
    kinds = ["server", "server", "client", "server", "client"]
    assert [spans[one].kind for one in ("embedder query", *tree[:-1])] == kinds
    assert not any(span.is_failed for span in spans.values())
    for one in ("search_memory", "host recall"):
        attributes = spans[one].attributes
        assert attributes["gen_ai.operation.name"] == "search_memory"
        assert attributes["gen_ai.memory.record.count"] == 1
    stages = {stage for stage in spans["host recall"].attributes if stage.endswith("_ms")}
    assert stages >= {f"memory_agent.{stage}_ms" for stage in ("words", "embedding", "search", "ranking")}
    assert spans["host recall"].resource["service.name"] == "memory-agent"


def test_a_write_and_its_embedding_are_one_trace(collector: Collector, program: dict[str, str]) -> None:
    spans = collector.trace(program["remember"], 6)
    tree = ["host remember", "daemon remember", "door remember", "upsert_memory", "agent"]
    assert lineage(spans, "embedder text") == tree
    assert spans["host remember"].attributes["memory_agent.waking_ms"] > 0


def test_spans_of_a_refused_request_have_the_code_of_the_error(collector: Collector, program: dict[str, str]) -> None:
    spans = collector.trace(program["failed"], 5)
    assert [spans[one].attributes["error.type"] for one in ("search_memory", "door recall", "host recall")] == [
        "invalid_input",
        "invalid_input",
        "invalid_input",
    ]
    assert all(spans[one].is_failed for one in ("search_memory", "door recall", "host recall"))


def caller(daemon: DaemonProcess) -> HttpCaller:
    layout = Layout(daemon.data_dir)
    return HttpCaller(layout.http.read_text().strip(), layout.token())


def test_a_recall_over_http_continues_the_callers_trace(collector: Collector, traced: DaemonProcess) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    http = caller(traced)
    asked = {"user_id": "ada", "query": QUERY, "deadline_ms": 60_000}
    assert http.post("recall", asked, traceparent=f"00-{trace}-{PARENT}-01").status == 200
    spans = collector.trace(trace, 4)
    assert lineage(spans, "embedder query") == ["host recall", "daemon recall", "door recall"]
    assert spans["door recall"].parent == PARENT
    unsampled = "1" * 32
    assert http.post("recall", asked, traceparent=f"00-{unsampled}-{PARENT}-00").status == 200
    after = "2" * 32
    assert http.post("stats", {"user_id": "ada"}, traceparent=f"00-{after}-{PARENT}-01").status == 200
    assert collector.trace(after, 3)
    assert unsampled not in {span.trace for span in collector.spans()}
    http.close()


def test_a_tool_call_over_mcp_continues_the_trace_of_its_meta(collector: Collector, traced: DaemonProcess) -> None:
    trace = "3" * 32
    params = {
        "name": "recall",
        "arguments": {"query": QUERY},
        "_meta": {"traceparent": f"00-{trace}-{PARENT}-01"},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    http = caller(traced)
    answer = http.send("POST", "/mcp?user_id=ada", msgspec.json.encode(message), MCP_Protocol_Version="2025-06-18")
    http.close()
    assert answer.status == 200, answer.body
    assert "result" in answer.json(), answer.body
    spans = collector.trace(trace, 4)
    assert spans["door recall"].parent == PARENT


@pytest.mark.parametrize("header", ["", "hello", "00-" + "0" * 32 + "-" + PARENT + "-01", "ff" * 40])
def test_a_malformed_trace_context_begins_a_new_trace(collector: Collector, traced: DaemonProcess, header: str) -> None:
    before = {span.id for span in collector.spans()}
    http = caller(traced)
    assert http.post("stats", {"user_id": "ada"}, traceparent=header).status == 200
    http.close()
    wanted = ("door stats", "daemon stats", "host stats")
    collector.wait_for(lambda: {span.name for span in collector.spans() if span.id not in before} >= {*wanted})
    new = {span.name: span for span in collector.spans() if span.id not in before}
    assert new["door stats"].parent == ""


def test_an_earlier_client_and_a_later_one_are_answered(collector: Collector, traced: DaemonProcess) -> None:
    """An earlier client sends no trace context, and a later client may send fields that this version does not have."""
    params = encode(RecallParams.of(query=QUERY, deadline_ms=60_000.0))
    earlier = {"method": "recall", "user_id": "ada", "params": msgspec.Raw(params), "deadline_ms": 60_000.0}
    earlier |= {"token": Layout(traced.data_dir).token(), "version": 4}
    for request in (earlier, earlier | {"traceparent": 7 * "x", "tracestate": "a=b"}):
        socket = RequestSocket(traced.ready["endpoints"]["gateway"])
        (reply,) = socket.request(encode(request), 60)
        socket.close()
        assert decode_reply(reply, BY_NAME["recall"].result).memories[0].record.text == SECRET


def test_spans_contain_no_text_no_token_no_vector_and_no_user(
    collector: Collector, traced: DaemonProcess, program: dict[str, str]
) -> None:
    with MemoryClient("ada", data_dir=traced.data_dir) as client:
        record = client.remember("a second secret about the wombat", tags=["marsupial"])
        (record,) = client.get([record.id], with_embedding=True)
        client.recall("cellar", deadline_ms=60_000)
        with pytest.raises(InvalidInputError):
            client.remember("anything", kind="wombat")
        last = client.stats()
    assert last.memories == 2
    collector.trace(program["recall"], 6)
    collector.wait_for(lambda: any(span.attributes.get("error.type") for span in collector.spans()))
    assert record.embedding is not None
    vector = msgspec.msgpack.encode(float(record.embedding[0]))[1:]
    sent = b"".join(collector.bodies)
    token = Layout(traced.data_dir).token()
    for text in ("wombat", "cellar", "marsupial", "ada", token, record.id, str(traced.data_dir)):
        assert text.encode() not in sent, text
    assert vector not in sent
    assert b"door recall" in sent  # `sent` contains the spans, uncompressed
    for span in collector.spans():
        values = [value for value in span.attributes.values() if isinstance(value, str)]
        assert all(len(value) < 40 for value in values), span


def test_nothing_of_opentelemetry_is_imported_without_an_endpoint(own_daemon: DaemonProcess) -> None:
    """Python itself reports the modules that a daemon and a client import."""
    own_daemon.program = (sys.executable, "-X", "importtime", "-m", "memory_agent")
    own_daemon.start()
    http = caller(own_daemon)
    traceparent = f"00-{'4' * 32}-{PARENT}-01"
    assert http.post("remember", {"user_id": "bob", "text": SECRET}, traceparent=traceparent).status == 200
    assert http.post("recall", {"user_id": "bob", "query": QUERY}, traceparent=traceparent).status == 200
    http.close()
    program = (
        "import sys\nfrom memory_agent import MemoryClient\n"
        "with MemoryClient('bob', data_dir=sys.argv[1]) as client: client.recall('anything')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    command = [sys.executable, "-c", program, str(own_daemon.data_dir)]
    subprocess.run(command, check=True, timeout=60, env=environment())
    assert own_daemon.stop() == 0
    assert "memory_agent.tracing" in own_daemon.log()
    assert "opentelemetry" not in own_daemon.log()


def test_a_daemon_with_a_missing_collector_answers_and_stops(own_daemon: DaemonProcess) -> None:
    own_daemon.configure("tracing.endpoint=http://127.0.0.1:1", "tracing.interval_s=0.1")
    own_daemon.start()
    with MemoryClient("bob", data_dir=own_daemon.data_dir) as client:
        client.remember(SECRET)
        assert client.recall(QUERY, deadline_ms=60_000).degraded == ()
    assert own_daemon.stop() == 0
    events = [json.loads(line)["event"] for line in own_daemon.log().splitlines()]
    assert events.count("traces.not_exported") == 1
