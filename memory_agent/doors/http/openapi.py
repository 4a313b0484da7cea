"""The OpenAPI 3.1 description, derived from the verb table and the types of request and response bodies."""

from __future__ import annotations

from typing import Any

import msgspec

from memory_agent.doors.bodies import IDEMPOTENCY_KEY, PUBLIC, body_type, key_field
from memory_agent.doors.http.problems import PROBLEM_TYPE, Problem
from memory_agent.doors.http.publishing import EventsRequest, Published
from memory_agent.doors.http.streams import EVENT_STREAM, Gap, JournaledEvent, WorkProgress
from memory_agent.triggers.block import Block
from memory_agent.verbs.table import VERBS, Verb
from memory_agent.version import VERSION

_REF = "#/components/schemas/{name}"
_REFUSALS = {
    "400": "The request is malformed, for example because its body is not JSON.",
    "401": "The token is missing or unknown, or its key was revoked.",
    "403": "The key lacks the required scope or is for a different user, or the request is from a different origin.",
    "404": "The run was never begun, or was forgotten.",
    "408": "The body did not arrive in time.",
    "409": "The run has already ended, or began with a different objective or session.",
    "413": "The body is too large.",
    "415": "The Content-Type of the body is not JSON.",
    "421": "The Host header names a different host.",
    "422": "An argument is invalid; the problem names it.",
    "429": "This user searches more often than the settings allow; retry after the time in Retry-After.",
    "500": "An internal error; see the daemon's log for details.",
    "503": "A part of the daemon is unavailable, or too many requests are running; try again.",
    "504": "The request was not completed before the deadline.",
    "507": "The disk or the memory's store is full.",
}
_STREAMED: dict[str, tuple[str, dict[str, type], dict[str, str]]] = {
    "blocks": (
        "Follow the blocks that the memory publishes unprompted.",
        {"block": Block, "gap": Gap, "problem": Problem},
        {
            "user_id": "The user; default: the key's user. `system` follows the owner of the run or session.",
            "role": "Only blocks for this role of the trigger table: `conductor` (messages), `worker` (runs, "
            "assignments), `writer` (documents), or a role in your own table.",
            "run": "Only blocks about this run.",
            "session": "Only blocks about this session.",
        },
    ),
    "events": (
        "Follow a user's events as they are journaled.",
        {"event": JournaledEvent, "gap": Gap, "problem": Problem},
        {
            "user_id": "The user; default: the key's user. `*`, which requires an admin key for all users, means "
            "all users. `shared-knowledge`: changes to shared items that the key may see.",
            "type": "Only events whose type matches this pattern, such as `chat.*`. Repeatable.",
        },
    ),
}


def describe_door() -> dict[str, Any]:
    bodies = [body_type(verb.params) for verb in PUBLIC]
    results = [type(None) if verb.result is None else verb.result for verb in PUBLIC]
    (events, published, *schemas), components = msgspec.json.schema_components(
        [EventsRequest, Published, *bodies, *results, Problem, Block, JournaledEvent, Gap, WorkProgress],
        ref_template=_REF,
    )
    of_verbs = zip(PUBLIC, schemas[: len(bodies)], schemas[len(bodies) :], strict=False)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "memory-agent",
            "version": VERSION,
            "summary": "An episodic memory for agents: what happened to a user before, when it matters again.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": {f"/v1/{verb.name}": {"post": _operation(verb, body, result)} for verb, body, result in of_verbs}
        | {f"/v1/{name}": {"get": _stream(name)} for name in _STREAMED if name != "events"}
        | {"/metrics": {"get": _metrics()}}
        | {"/v1/events": {"get": _stream("events"), "post": _publish(events, published)}},
        "components": {
            "schemas": _plain(components),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {status: _refusal(why) for status, why in _REFUSALS.items()},
        },
    }


def _operation(verb: Verb, body: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    summaries = dict.fromkeys(one.summary for one in VERBS if one.name == verb.name)
    described: dict[str, Any] = {
        "operationId": verb.name,
        "summary": verb.summary,
        "description": " ".join([*summaries, f"Requires a key with scope {verb.scope}."]),
        "tags": [verb.answered_by],
        "requestBody": {
            "required": any(field.required for field in msgspec.structs.fields(body_type(verb.params))),
            "content": {"application/json": {"schema": _plain(body)}},
        },
        "responses": _responses("The result.", _result(_plain(result))),
    }
    if key_field(verb) is not None:
        described["parameters"] = [
            {
                "name": IDEMPOTENCY_KEY,
                "in": "header",
                "description": f"Identifies repeated requests; sets `{key_field(verb)}` if the body does not.",
                "schema": {"type": "string"},
            }
        ]
    return described


def _publish(events: dict[str, Any], published: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": "publish_events",
        "summary": "Publish events; responds once they are durable.",
        "description": "Secrets are masked before anything is stored. An event is a duplicate if its `event_id` is "
        "already stored or, without an id, if it equals a stored event. Requires a key with scope publish.",
        "tags": ["events"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _plain(events)}}},
        "responses": _responses("The outcome for each event.", {"application/json": {"schema": _plain(published)}}),
    }


def _metrics() -> dict[str, Any]:
    return {
        "operationId": "scrape",
        "summary": "Return the daemon's figures, for Prometheus.",
        "description": "Same as the verb metrics. Requires a key that is for all users and has the scope metrics.",
        "tags": ["daemon"],
        "responses": _responses("The figures.", {"text/plain": {"schema": {"type": "string"}}}),
    }


def _stream(name: str) -> dict[str, Any]:
    summary, events, parameters = _STREAMED[name]
    query: list[dict[str, Any]] = [
        {"name": parameter, "in": "query", "description": meaning, "schema": _text(parameter)}
        for parameter, meaning in parameters.items()
    ]
    after = {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The id of the last received event; the stream continues after it.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    }
    said = {"x-events": {kind: {"$ref": _REF.format(name=type_.__name__)} for kind, type_ in events.items()}}
    return {
        "operationId": f"follow_{name}",
        "summary": summary,
        "description": "Event data is JSON; `x-events` contains each kind's schema. A `problem` is the last event.",
        "tags": ["streams"],
        "parameters": [*query, after],
        "responses": _responses("The stream.", {EVENT_STREAM: {"schema": {"type": "string"}, **said}}),
    }


def _text(parameter: str) -> dict[str, Any]:
    text = {"type": "string", "minLength": 1}
    return {"type": "array", "items": text} if parameter == "type" else text


def _result(schema: Any) -> dict[str, Any]:
    """Return the two forms of a result: JSON or, if `Accept` begins with the type of an event stream, a stream that
    ends with the result."""
    progress, failed = ({"$ref": _REF.format(name=type_.__name__)} for type_ in (WorkProgress, Problem))
    events = {"progress": progress, "result": schema, "problem": failed}
    return {"application/json": {"schema": schema}, EVENT_STREAM: {"schema": {"type": "string"}, "x-events": events}}


def _responses(described: str, content: dict[str, Any]) -> dict[str, Any]:
    refusals = {status: {"$ref": f"#/components/responses/{status}"} for status in _REFUSALS}
    return {"200": {"description": described, "content": content}, **refusals}


def _refusal(why: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Problem")}
    return {"description": why, "content": {PROBLEM_TYPE: {"schema": schema}}}


def _plain(schema: Any) -> Any:
    """Return a schema without the indentation that msgspec copies from docstrings."""
    if isinstance(schema, dict):
        return {
            name: " ".join(value.split()) if name == "description" and isinstance(value, str) else _plain(value)
            for name, value in schema.items()
        }
    return [_plain(one) for one in schema] if isinstance(schema, list | tuple) else schema
