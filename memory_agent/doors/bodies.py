"""The request body of each verb: its parameters, the user and the deadline, as one JSON object. No I/O.

The types are derived from the verb table, so parsing always agrees with the OpenAPI description (`openapi`). Fields
that our clients fill in (`Params.implied`, an `event_id`) may be missing; unknown fields are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from memory_agent.errors import InvalidInputError, ProtocolError
from memory_agent.records.arguments import located
from memory_agent.verbs.params import Params
from memory_agent.verbs.protocol import LONGEST_DEADLINE_MS, NEWEST_VERSION, Request, encode_fields
from memory_agent.verbs.table import BY_NAME, VERBS, Verb
from relay import described

IDEMPOTENCY_KEY = "Idempotency-Key"
_KEYED = ("event_id", "id")
"""Fields that identify a repeated write. A field missing from the body is set to the idempotency key."""
_SAFE_WHOLE = 1 << 53

T = TypeVar("T")

_NAMES = "a user id consists of 1 to 128 ASCII letters, digits and ._:@+-, with no leading dot"
UserId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_@+:-][A-Za-z0-9._@+:-]{0,127}$")]
DeadlineMs = Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_DEADLINE_MS)]

PUBLIC: tuple[Verb, ...] = tuple(verb for verb in VERBS if verb is BY_NAME[verb.name] and not verb.is_inner)


@cache
def body_type(params: type[Params]) -> type[msgspec.Struct]:
    """Return the struct type of a request body with these parameters."""
    stated = (field for field in msgspec.structs.fields(params) if field.name not in params.implied)
    fields = [
        (field.name, str | None, None) if field.name == "event_id" else same_field(field, field.type)
        for field in stated
    ]
    fields += [("user_id", UserId | None, None), ("deadline_ms", DeadlineMs | None, None)]
    return msgspec.defstruct(
        params.__name__.removesuffix("Params") + "Request", fields, kw_only=True, forbid_unknown_fields=True
    )


def same_field(field: msgspec.structs.FieldInfo, type_: Any) -> tuple[str, Any, Any]:
    """Return a field for `msgspec.defstruct` that has the name and default of `field`, and the type `type_`."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, type_, msgspec.field(default_factory=field.default_factory)
    return field.name, type_, msgspec.field() if field.required else field.default


def key_field(verb: Verb) -> str | None:
    """Return the field that an `Idempotency-Key` sets, or None if the verb needs no key."""
    return next((name for name in _KEYED if name in verb.params.__struct_fields__), None)


def read_request(verb: Verb, body: bytes, token: str, key: str | None = None) -> Request:
    """Parse a request body; an empty body means an empty object. `key` is the `Idempotency-Key`.

    Raises `ProtocolError` if the body is not JSON, and `InvalidInputError` (with the field's name).
    """
    given = msgspec.structs.asdict(decode_body(body, body_type(verb.params)))
    user_id, deadline_ms = given.pop("user_id"), given.pop("deadline_ms")
    return request_of(verb, with_key(verb, given, key), token, user_id, deadline_ms)


def with_key(verb: Verb, fields: Mapping[str, Any], key: str | None) -> Mapping[str, Any]:
    """Return the parameters; if their key field is missing, set it to the `Idempotency-Key`."""
    field = key_field(verb)
    return fields if key is None or field is None or fields.get(field) is not None else {**fields, field: key}


def request_of(
    verb: Verb, fields: Mapping[str, Any], token: str, user_id: str | None, deadline_ms: float | None = None
) -> Request:
    """Raises `InvalidInputError` (with the parameter's name)."""
    params = verb.params.stated(fields, deadline_ms)
    return Request(
        method=verb.name,
        user_id=user_id or "",
        deadline_ms=verb.patience_ms if deadline_ms is None else deadline_ms,
        params=msgspec.Raw(encode_fields(params)),
        token=token,
        version=NEWEST_VERSION,
    )


def decode_body(body: bytes, wanted: type[T], what: str = "body") -> T:
    """Decode JSON. Accepts `49.0` as an integer, as JSON Schema does. `what` names the body in error messages.

    Raises `ProtocolError` if the body is not JSON, and `InvalidInputError` (with the field's name).
    """
    try:
        try:
            return msgspec.json.decode(body or b"{}", type=described(wanted))
        except msgspec.ValidationError as error:
            field, reason = located(str(error), wanted)
            if "matching regex" in reason:
                reason = _NAMES  # no other field of these bodies has a pattern
            with suppress(msgspec.ValidationError):
                return msgspec.convert(_whole(msgspec.json.decode(body or b"{}")), described(wanted))
            raise InvalidInputError(field or what, reason) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the {what} is not JSON: {error}") from error


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < _SAFE_WHOLE:
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value
