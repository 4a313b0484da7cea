"""What a recall asks, checked: query, number of answers, filter, mode and patience. Pure.

Checked once, at the edge, so that the parts behind it can rely on it. Raises `InvalidInputError` naming the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import msgspec

from memory_agent.arguments import RecallOptions, check_deadline_ms, check_mode, check_options, check_time, check_whole
from memory_agent.config import RecallSettings
from memory_agent.embedders import check_text
from memory_agent.errors import InvalidInputError
from memory_agent.recall.profiles import Fetch, fetch
from memory_agent.records import Dates, MemoryFilter, Mode

MOST_ANSWERS = 1_000
MOST_VALUES = 1_000
"""Different values of one field of a filter; each is a parameter of the database's statement, more than once,
and SQLite takes 32,766 of those."""
_NO_FILTER = MemoryFilter()
_NAMES = ("session_id", "run_id", "channel_id", "agent_id")
_LISTS = ("kinds", "sources", "tags", "provenance")


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """A recall that can be answered.

    `floor` is the least raw cosine, None when any will do. One that the caller `insists` on leaves out what has no
    vector, even if that is everything; one of the settings holds only as far as there are vectors. `reference_time` is
    what times in the query are relative to. `context_tokens`: bound of the block for a prompt, None for no block.
    `by_run` is the run that asks.
    """

    query: str
    top_k: int
    filter: MemoryFilter | None
    mode: Mode
    floor: float | None
    insists: bool
    deadline_ms: float
    dates: Dates
    reference_time: datetime
    context_tokens: int | None
    with_embedding: bool
    by_run: str | None = None


def make_inquiry(
    query: str,
    top_k: int | None,
    filter: MemoryFilter | Mapping[str, Any] | None,
    mode: Mode | None,
    deadline_ms: float | None,
    options: RecallOptions,
    settings: RecallSettings,
    now: datetime,
) -> Inquiry:
    """Return what is asked at `now`, with the profile and the settings where the caller says nothing."""
    said = check_options(options)
    usual_fetch = fetch(said.get("profile"))
    chosen = _with_kinds(check_filter(filter), usual_fetch)
    mode = check_mode(mode) or settings.mode
    asked = None if chosen is None else chosen.min_score
    usual = settings.min_score if settings.min_score > -1.0 and mode != "lexical" else None
    return Inquiry(
        query=_check_query(query, settings.max_query_chars),
        top_k=check_whole("top_k", usual_fetch.top_k if top_k is None else top_k, MOST_ANSWERS),
        filter=_without_floor(chosen),
        mode=mode,
        floor=usual if asked is None else asked,
        insists=asked is not None,
        deadline_ms=check_deadline_ms(settings.deadline_ms if deadline_ms is None else deadline_ms),
        dates=said.get("dates") or settings.dates,
        reference_time=said.get("reference_time") or now,
        context_tokens=said.get("context_tokens"),
        with_embedding=said.get("with_embedding") or False,
        by_run=said.get("by_run"),
    )


def check_now(now: datetime | None) -> datetime:
    """Return the moment that the caller gave, or the present one. The place where the clock is read."""
    return datetime.now(UTC) if now is None else check_time("now", now)


def check_filter(filter: MemoryFilter | Mapping[str, Any] | None) -> MemoryFilter | None:
    """Return the filter, or what a mapping of its fields describes, checked; an empty name is no condition.

    What a list names twice it names once. Raises `InvalidInputError` for more than 1,000 different values of a field:
    the database would refuse them, in words that look like damage.
    """
    if filter is None:
        return None
    fields = msgspec.structs.asdict(filter) if isinstance(filter, MemoryFilter) else filter
    if not isinstance(fields, Mapping):
        raise InvalidInputError("filter", f"must be a MemoryFilter or a mapping, is {type(filter).__name__}")
    try:
        chosen = msgspec.convert(dict(fields), MemoryFilter)
    except msgspec.ValidationError as error:
        raise _of_filter(str(error)) from error
    for field in ("since", "until"):
        time = getattr(chosen, field)
        if time is not None and time.tzinfo is None:
            raise InvalidInputError(f"filter.{field}", "has no time zone")
    _check_floor("min_quality", chosen.min_quality, least=0.0)
    _check_floor("min_score", chosen.min_score, least=-1.0)
    lists = {field: _distinct(field, getattr(chosen, field)) for field in _LISTS}
    return msgspec.structs.replace(chosen, **lists, **{name: getattr(chosen, name) or None for name in _NAMES})


def _distinct(field: str, values: tuple[str, ...]) -> tuple[str, ...]:
    different = tuple(dict.fromkeys(values))
    if len(different) > MOST_VALUES:
        raise InvalidInputError(f"filter.{field}", f"has {len(different)} values, at most {MOST_VALUES} are allowed")
    return different


def _with_kinds(filter: MemoryFilter | None, usual: Fetch) -> MemoryFilter | None:
    """The filter, with the kinds of the profile where it names none."""
    if not usual.kinds or (filter is not None and filter.kinds):
        return filter
    return msgspec.structs.replace(filter or _NO_FILTER, kinds=usual.kinds)


def _without_floor(filter: MemoryFilter | None) -> MemoryFilter | None:
    """The conditions that columns answer; None when there are none."""
    if filter is None:
        return None
    rest = msgspec.structs.replace(filter, min_score=None)
    return None if rest == _NO_FILTER else rest


def _check_query(query: object, most_chars: int) -> str:
    check_text("query", query)
    assert isinstance(query, str)
    if not query.strip():
        raise InvalidInputError("query", "is empty")
    if len(query) > most_chars:
        raise InvalidInputError("query", f"has {len(query)} characters, at most {most_chars} are allowed")
    return query


def _check_number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidInputError(field, "must be a finite number")
    return float(value)


def _check_floor(field: str, value: float | None, least: float) -> None:
    """Refuse a floor that nothing can reach, or everything does: a percentage, say, for a fraction."""
    if value is not None and not least <= _check_number(f"filter.{field}", value) <= 1.0:
        raise InvalidInputError(f"filter.{field}", f"must be from {least:g} to 1")


def _of_filter(message: str) -> InvalidInputError:
    reason, _, path = message.partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    unknown = reason.partition("contains unknown field ")[2].strip("`")
    path = ".".join(part for part in ("filter", field, unknown) if part)
    return InvalidInputError(path, "there is no such field" if unknown else reason)
