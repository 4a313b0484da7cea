"""Test that messages keep the fields that they had in an earlier version, because both versions must interoperate.

`messages.json` contains requests (with their arguments) and replies, recorded with the last version that had no verb
table.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "memory_agent"))

from served_host import absent_embedder

from memory_agent.daemon.host import MemoryHost
from memory_agent.doors.reception import permitted
from memory_agent.settings import Settings
from memory_agent.verbs.protocol import decode, decode_reply, decode_request, encode_fields, encode_result
from memory_agent.verbs.table import BY_METHOD, BY_NAME, VERBS, Verb
from relay import ALL_SCOPES, Principal

EVERYBODY = Principal("local", None, ALL_SCOPES)


class Recorded(NamedTuple):
    """A request of the earlier version, the request's arguments, and the host's reply, if any."""

    verb: Verb
    arguments: dict[str, Any]
    request: bytes
    reply: bytes | None


def _value(told: Any) -> Any:
    if isinstance(told, dict) and told.keys() == {"time"}:
        return datetime.fromisoformat(told["time"])
    if isinstance(told, dict) and told.keys() == {"base64"}:
        return base64.b64decode(told["base64"])
    # Encoding omits a field only if its value is the default object itself (`is`).
    return sys.intern(told) if isinstance(told, str) else told


def _recorded() -> list[Recorded]:
    names = {
        "remember": ("text", "kind", "source"),
        "recall": ("query", "top_k", "filter", "mode", "deadline_ms"),
        "get": ("ids",),
        "forget": ("ids",),
        "forget_session": ("session_id",),
        "feedback": ("recall_id", "used", "quality", "comment"),
        "runs.begin": ("objective", "run_id", "session_id", "recall_ids"),
        "runs.step": ("run_id", "text", "memory_ids"),
        "runs.end": ("run_id", "outcome", "summary", "quality", "memory_ids"),
        "runs.get": ("run_id",),
        "runs.list": ("state", "limit"),
        "sona.load": ("data",),
        "erasure.erase": ("record_ids",),
        "wait": ("through", "timeout_s"),
        "quarantined": ("after", "limit"),
        "retry_quarantined": ("ids",),
        "drop_quarantined": ("ids",),
    }
    found = []
    document = json.loads(Path(__file__).with_name("messages.json").read_text(encoding="utf-8"))
    for message in document["messages"]:
        places = dict(zip(names.get(message["method"], ()), map(_value, message["args"]), strict=False))
        arguments = {**places, **{name: _value(value) for name, value in message["kwargs"].items()}}
        reply = None if message["reply"] is None else base64.b64decode(message["reply"])
        found.append(Recorded(BY_METHOD[message["method"]], arguments, base64.b64decode(message["request"]), reply))
    return found


MESSAGES = _recorded()
IDS = [f"{number}-{message.verb.method}" for number, message in enumerate(MESSAGES)]


NEW = {
    "list",
    "map",
    "metrics",
    "owner",
    "runs.similar",
    "shared.preview",
    "shared.confirm",
    "shared.offer",
    "shared.offered",
    "shared.unpublish",
    "shared.rate",
    "shared.published",
    "shared.search",
    "shared.item",
    "shared.attachment",
    "shared.name",
    "shared.set_name",
    "sessions",
}
"""Verbs that the earlier version did not have."""
ADDED = {
    "type",
    "phase",
    "updated_at",
    "waiting",
    "excluded",
    "relevance",
    "learned",
    "failed",
    "runs",
    "shared_steps",
    "failed_steps",
    "judge",
    "judgement",
    "provider",
    "is_cancelled",
    "conclusions",
    "shared",
    "unpublished",
    "offers",
    "ratings",
    "passage_at",
    "schema_version",
    "created_at",
    "rebuilt_at",
    "ndim",
    "total",
    "cached_from",
    "engine",
    "history",
    "most_credited",
}
"""Fields of records, statistics and answers that the earlier version did not have."""


def test_every_verb_was_recorded() -> None:
    assert {message.verb.method for message in MESSAGES} == {verb.method for verb in VERBS if not verb.is_inner} - NEW


@pytest.mark.parametrize("message", MESSAGES, ids=IDS)
def test_a_client_sends_what_it_sent_before_and_no_field_besides(message: Recorded) -> None:
    sent, former = (
        decode_request(message.verb.call(message.arguments).encode("alice", "t")),
        decode_request(message.request),
    )
    assert msgspec.structs.replace(sent, params=former.params) == former
    assert decode(sent.params, message.verb.params) == decode(former.params, message.verb.params)
    assert _is_within(decode(sent.params, Any), decode(former.params, Any))


def _is_within(sent: Any, former: Any) -> bool:
    """Whether every key of each mapping existed in the earlier version. Unset fields may now be omitted."""
    if isinstance(sent, dict):
        return sent.keys() <= former.keys() and all(_is_within(one, former[name]) for name, one in sent.items())
    return bool(sent == former)


@pytest.mark.parametrize("message", MESSAGES, ids=IDS)
def test_a_daemon_understands_an_older_client(message: Recorded) -> None:
    request = decode_request(message.request)
    assert permitted(request, EVERYBODY) == request
    kind = BY_NAME[request.method].params
    params = decode(request.params, kind)
    assert decode(encode_fields(params), kind) == params


@pytest.mark.parametrize(
    "message", [message for message in MESSAGES if message.reply is not None], ids=lambda one: one.verb.method
)
def test_a_client_understands_an_older_daemon_whose_replies_had_these_fields(message: Recorded) -> None:
    assert message.reply is not None
    again = encode_result(decode_reply(message.reply, message.verb.result))
    former = decode_reply(message.reply, Any)
    assert _without_added(decode_reply(again, Any), former) == former


def _without_added(value: Any, former: Any) -> Any:
    """Remove the newer fields of records and answers, which must be empty."""
    if isinstance(value, dict) and isinstance(former, dict):
        assert not any(value[name] for name in ADDED & (value.keys() - former.keys()))
        kept = value.keys() - (ADDED - former.keys())
        return {name: _without_added(value[name], former.get(name)) for name in kept}
    if isinstance(value, list) and isinstance(former, list) and len(value) == len(former):
        return [_without_added(one, other) for one, other in zip(value, former, strict=True)]
    return value


def test_a_host_answers_an_older_client(tmp_path: Path) -> None:
    """The recorded ids are unknown to a new store, so requests for them are refused or find nothing."""
    with absent_embedder(tmp_path) as embedder:
        host = MemoryHost(tmp_path, Settings(), embedder)
        faults = []
        for message in MESSAGES:
            if message.reply is not None:
                request = decode_request(message.request)
                reply = host.call("alice", request.method, bytes(request.params), request.deadline_ms)
                try:
                    decode_reply(reply, message.verb.result)
                except Exception as error:  # all faults are compared at the end
                    faults.append((message.verb.method, str(error)))
        host.close()
        assert faults == [("feedback", "recall_id: unknown recall or run: mistyped, or too old to be credited")]
