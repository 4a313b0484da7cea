"""Argument checks, run by the client before it sends a request and again by the memory.

None means the default. The checks raise `InvalidInputError` with the argument's name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from math import hypot, inf, isfinite
from typing import Any, TypedDict, TypeVar, cast

import msgspec
from msgspec.inspect import DictType, ListType, LiteralType, Metadata, StructType, Type, UnionType, VarTupleType

from memory_agent.errors import InvalidInputError
from memory_agent.records.memories import DATES, MODES, PROFILES, TIERS, Dates, MemoryFilter, Mode, Profile, Tier
from relay import described, validate_object
from relay.errors import MalformedEventError

MOST_CONTEXT_TOKENS = 100_000
MOST_LISTED = 1_000
MOST_POINTS = 10_000
"""Maximum number of memories in a map: 1.5 s of processor time and 60 MB for 384 dimensions (measured)."""
MOST_SIMILAR_RUNS = 50
MOST_NAME_CHARS = 256
MOST_VECTOR_NUMBERS = 16_384
MOST_METADATA_LEVELS = 64
MOST_DEADLINE_MS = 86_400_000.0
"""One day. Clocks and sockets do not support much longer times."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP = re.compile(r"\[[^]]*\]|[^.\[]+")

Word = TypeVar("Word", bound=str)
Struct = TypeVar("Struct", bound=msgspec.Struct)


class RecallOptions(TypedDict, total=False):
    """Further options of a recall.

    `profile`: the planner's situation, which sets the default number and kinds of memories. `dates`: how to treat a
    time mentioned in the query. `reference_time`: the time relative to which "last week" is resolved (default: now);
    its time zone decides when days begin. `context_tokens`: also render a prompt block of at most this many tokens of
    the embedding model. `with_embedding`: include each record's vector. `min_relevance`: the minimum relevance of a
    returned memory, 0 to 1; 0 disables the threshold. `runs`: also return at most this many finished runs whose request
    resembles the query; in the block, they come first. The default is 2 if a block is rendered for the profile
    `before_planning` or `trajectory`, else 0. `tiers`: `local`, the default, is the user's own memory; `global`
    contains the items that users share.

    An answer excludes the caller's own words: the memory of the event that causes the recall (`by_event`), the memories
    of the calling run (`by_run`), and those of the calling session (`by_session`) from the last `recall.echo_minutes`
    minutes. The outcome of the calling run is credited to the memories it used.

    `vector`: the caller's own vector for the query, of the same dimension as the memories' vectors and of any nonzero
    length. The query may then be empty. `vector_model` is required with `vector`: the `model` in `stats`, or the stamp
    of another embedder with the same weights and prefixes.

    `unlogged`: leave no trace of the recall. Its memories do not count as recalled, nothing is learned from it, and no
    feedback can refer to it.
    """

    profile: Profile | None
    dates: Dates | None
    reference_time: datetime | None
    context_tokens: int | None
    with_embedding: bool | None
    by_run: str | None
    by_session: str | None
    by_event: str | None
    min_relevance: float | None
    runs: int | None
    tiers: Sequence[Tier] | None
    vector: Sequence[float] | None
    vector_model: str | None
    unlogged: bool | None


def check_text(field: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidInputError(field, f"must be text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, f"is not valid Unicode: lone surrogate at {error.start}") from error


def joined(field: str, parts: object) -> str:
    """Join one or more parts into one text, with one part per line."""
    if not isinstance(parts, list | tuple):
        check_text(field, parts)
        return cast(str, parts)
    for place, part in enumerate(parts):
        check_text(f"{field}[{place}]", part)
    return "\n".join(parts)


def check_not_blank(field: str, text: object) -> None:
    check_text(field, text)
    if not cast(str, text).strip():
        raise InvalidInputError(field, "must not be empty")


def check_ids(field: str, ids: object) -> list[str]:
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise InvalidInputError(field, "must be a list of ids")
    for one in ids:
        check_text(field, one)
    return list(ids)


def check_object(field: str, value: object, levels: int = MOST_METADATA_LEVELS) -> dict[str, Any]:
    """Return a JSON object nested at most `levels` deep. The error names the path of a value that cannot be stored."""
    try:
        return validate_object(field, value, levels)
    except MalformedEventError as error:
        raise InvalidInputError(error.field, error.reason) from error


def check_share(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise InvalidInputError(field, "must be a number from 0 to 1")
    return float(value)


def check_options(options: Mapping[str, object]) -> RecallOptions:
    for name in options:
        if name not in _CHECKS:
            raise InvalidInputError(name, "recall has no such option" + _hint(name))
    given = {name: _CHECKS[name](name, value) for name, value in options.items() if value is not None}
    if ("vector" in given) != ("vector_model" in given):
        raise InvalidInputError("vector_model", "must be set if and only if vector is set; use the `model` in `stats`")
    return cast(RecallOptions, given)


def _hint(name: str) -> str:
    if name in MemoryFilter.__struct_fields__:
        return "; it is a field of the filter"
    close = difflib.get_close_matches(name, ("top_k", "filter", "mode", "deadline_ms", *_CHECKS), 1)
    return f"; did you mean {close[0]}?" if close else ""


def check_mode(mode: object) -> Mode | None:
    return None if mode is None else check_choice("mode", mode, MODES)


def check_deadline_ms(deadline_ms: object) -> float:
    """Return the deadline in milliseconds, clamped to the range from 0 to a day."""
    is_number = isinstance(deadline_ms, int | float) and not isinstance(deadline_ms, bool)
    if not is_number or (isinstance(deadline_ms, float) and not isfinite(deadline_ms)):
        raise InvalidInputError("deadline_ms", "must be a finite number")
    return float(min(max(cast(float, deadline_ms), 0.0), MOST_DEADLINE_MS))


def check_choice(field: str, value: object, choices: Sequence[Word]) -> Word:
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputError(field, f"must be one of {', '.join(choices)}")
    return cast(Word, value)


def check_whole(field: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidInputError(field, f"must be a whole number from 1 to {most}")
    return value


def _check_count(field: str, value: object) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else check_whole(field, value, MOST_SIMILAR_RUNS)


def check_time(field: str, value: object) -> datetime:
    """Return a time with a time zone, not before 1970."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInputError(field, "must be a time with a time zone")
    if value < _EPOCH:
        raise InvalidInputError(field, "must not be before 1970")
    return value


def converted(field: str, value: Mapping[str, Any], wanted: type[Struct]) -> Struct:
    """Convert a mapping to a struct. The error names the path, which begins with `field`."""
    try:
        return msgspec.convert(value, described(wanted))
    except msgspec.ValidationError as error:
        inner, reason = located(str(error), wanted)
        raise InvalidInputError(f"{field}.{inner}".rstrip("."), reason) from error


def located(message: str, wanted: Any) -> tuple[str, str]:
    """Return the field and the reason from a msgspec message about a value of type `wanted`.

    If a field is unknown, the returned field includes its name. The reason lists the valid fields or values.

    >>> located("Invalid enum value 'idea' - at `$.kinds[0]`", MemoryFilter)
    ('kinds[0]', 'must be one of episode, finding, pattern, strategy')
    """
    reason, _, path = message.partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    unknown = reason.partition("contains unknown field ")[2].strip("`")
    fields, words = _choices(wanted, field)
    if unknown:
        there = f"; must be one of: {', '.join(fields)}" if fields else ""
        return ".".join(part for part in (field, unknown) if part), f"no such field{there}"
    if fields and reason.startswith("Expected `object"):
        reason += f"; its fields are {', '.join(fields)}"
    if words and reason.startswith("Invalid enum value"):
        reason = f"must be one of {', '.join(words)}"
    return field, reason


def _choices(wanted: Any, path: str) -> tuple[list[str], list[str]]:
    found = [_described(wanted)]
    for step in _STEP.findall(path):
        found = [inner for type_ in found for inner in _inside(type_, step)]
    options = [option for type_ in found for option in _options(type_)]
    fields = [field.name for type_ in options if isinstance(type_, StructType) for field in type_.fields]
    words = [str(word) for type_ in options if isinstance(type_, LiteralType) for word in type_.values]
    return fields, words


@cache
def _described(wanted: Any) -> Type:
    return msgspec.inspect.type_info(wanted)


def _options(type_: Type) -> Sequence[Type]:
    if isinstance(type_, Metadata):
        return _options(type_.type)
    return type_.types if isinstance(type_, UnionType) else (type_,)


def _inside(type_: Type, step: str) -> Iterator[Type]:
    """Yield the types to which a step of a path leads: the type of a field or, in brackets, of an element or value."""
    for option in _options(type_):
        if isinstance(option, StructType):
            yield from (field.type for field in option.fields if field.encode_name == step)
        elif isinstance(option, ListType | VarTupleType):
            yield option.item_type
        elif isinstance(option, DictType):
            yield option.value_type


def _check_tiers(field: str, value: object) -> tuple[Tier, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise InvalidInputError(field, f"must be a non-empty list of {', '.join(TIERS)}")
    return tuple(dict.fromkeys(check_choice(f"{field}[{place}]", tier, TIERS) for place, tier in enumerate(value)))


def _check_vector(field: str, value: object) -> tuple[float, ...]:
    try:
        numbers = () if isinstance(value, str | bytes) else tuple(map(float, cast(Iterable[float], value)))
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    if not 0 < len(numbers) <= MOST_VECTOR_NUMBERS:
        raise InvalidInputError(field, f"must be a list of 1 to {MOST_VECTOR_NUMBERS} numbers")
    if not 0.0 < hypot(*numbers) < inf:
        raise InvalidInputError(field, "must be finite and not all zeros")
    return numbers


def check_flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInputError(field, "must be true or false")
    return value


def _check_name(field: str, value: object) -> str:
    check_not_blank(field, value)
    return cast(str, value)


def _check_id(field: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME_CHARS:
        owner = field.removeprefix("by_")
        raise InvalidInputError(
            field, f"must be the id of {_ARTICLES[owner]} {owner} (1 to {MOST_NAME_CHARS} characters)"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(field, "is not valid Unicode") from error
    return value


_ARTICLES = {"run": "a", "session": "a", "event": "an"}

_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "profile": lambda field, value: check_choice(field, value, PROFILES),
    "dates": lambda field, value: check_choice(field, value, DATES),
    "reference_time": check_time,
    "context_tokens": lambda field, value: check_whole(field, value, MOST_CONTEXT_TOKENS),
    "with_embedding": check_flag,
    "by_run": _check_id,
    "by_session": _check_id,
    "by_event": _check_id,
    "min_relevance": check_share,
    "runs": _check_count,
    "tiers": _check_tiers,
    "vector": _check_vector,
    "vector_model": _check_name,
    "unlogged": check_flag,
}
assert _CHECKS.keys() == RecallOptions.__annotations__.keys()
