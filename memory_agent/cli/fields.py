"""Build options from a parameter struct's fields, with each field's name, help, type, bounds and default.

Undocumented fields get no option. `filter_options` adds the options of a `MemoryFilter`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import msgspec

from memory_agent.cli.command import Verb, with_options
from memory_agent.cli.options import Moment
from memory_agent.records.memories import Exclusion, MemoryFilter

Pair = tuple[str, Any]
_WIDEST_CHOICE = 40
"""Maximum length, in characters, of a list of choices shown as a metavar. Longer lists are left to the help text."""
_IDS = ("_id", "_ids")


class MetadataPair(click.ParamType[Pair]):
    """KEY=VALUE, where VALUE is parsed as JSON if possible, otherwise taken as text."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pair:
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not of the form KEY=VALUE, such as host=staging", param, ctx)
        try:
            return key, msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return key, text


def documented(struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(struct) if get_origin(field.type) is Annotated}


def field_options(
    struct: type[msgspec.Struct], *only: str, but: Sequence[str] = (), prefix: str = "", **names: str
) -> Callable[[Verb], Verb]:
    """Add an option for each documented field, or for each field in `only`; skip the fields in `but`.

    The command receives each value under its field's name. The option has the same name, in the singular and without
    `_id`, unless `names` overrides it, as in `timestamp="--at"`. Both names begin with `prefix`.
    """
    fields = [field for name, field in documented(struct).items() if name not in but and (not only or name in only)]
    options = [_option(field, names.get(field.name) or _usual(field, prefix), prefix) for field in fields]
    return lambda command: with_options(command, options)


def _usual(field: msgspec.structs.FieldInfo, prefix: str) -> str:
    name = field.name.removesuffix("_ids").removesuffix("_id")
    many = get_origin(_wanted(field)) is tuple
    return "--" + (prefix + (name.removesuffix("s") if many else name)).replace("_", "-")


def _wanted(field: msgspec.structs.FieldInfo) -> Any:
    """Return a field's type without its documentation or `| None`."""
    wanted = get_args(field.type)[0]
    return get_args(wanted)[0] if get_origin(wanted) in (UnionType, Union) else wanted


def _option(field: msgspec.structs.FieldInfo, option: str, prefix: str) -> Callable[[Verb], Verb]:
    wanted, meta, names = _wanted(field), get_args(field.type)[1], option.split()
    if wanted is bool:
        return click.option(*names, prefix + field.name, is_flag=True, help=meta.description)
    is_many = get_origin(wanted) in (tuple, dict)
    element = get_args(wanted)[0] if get_origin(wanted) is tuple else wanted
    shown: dict[str, Any] = {"type": _type(element, meta.extra_json_schema or {}), "help": meta.description}
    if element is datetime:
        shown["help"] = f"{meta.description} An age is accepted too: 7d, 12h."
    if is_many:
        # Without a value, a field that is None by default stays None.
        shown |= {"multiple": True, "help": f"{meta.description} May be repeated."}
        if field.default is None:
            shown["callback"] = lambda _context, _parameter, values: values or None
    elif field.default not in (None, msgspec.NODEFAULT):
        shown |= {"default": field.default, "show_default": True}
    if element is str:
        shown["metavar"] = _metavar(field.name, option)
    if isinstance(shown["type"], click.Choice) and len("|".join(shown["type"].choices)) > _WIDEST_CHOICE:
        shown["metavar"] = names[-1].removeprefix("--").upper()
    return click.option(*names, prefix + field.name, **shown)


def _type(element: Any, bounds: Mapping[str, Any]) -> click.ParamType[Any]:
    least, most = bounds.get("minimum"), bounds.get("maximum")
    if get_origin(element) is Literal:
        return click.Choice(get_args(element))
    if get_origin(element) is dict:
        return MetadataPair()
    if element is int:
        return click.IntRange(least, most)
    if element is float:
        return click.FloatRange(least, most)
    return Moment() if element is datetime else click.STRING


def _metavar(field: str, option: str) -> str:
    is_id = field == "id" or field.endswith(_IDS) or field.startswith("by_") or option.startswith("--exclude")
    return "ID" if is_id or field in ("in_channel", "used") else "TEXT"


_EXCLUDE = "exclude_"


def filter_options(command: Verb) -> Verb:
    return _filtered(command, ())


def selection_options(command: Verb) -> Verb:
    """Like `filter_options` without --session, for a command whose --session selects more than memories."""
    return _filtered(command, ("session_id",))


def _filtered(command: Verb, but: Sequence[str]) -> Verb:
    fields, excluded = documented(MemoryFilter).keys() - set(but), documented(Exclusion)

    @functools.wraps(command)
    def with_filter(*arguments: Any, **named: Any) -> Any:
        own = {name: named.pop(name) for name in fields}
        exclude = Exclusion(**{name: named.pop(_EXCLUDE + name) for name in excluded})
        metadata: dict[str, Any] = {}
        for path, value in own.pop("metadata"):
            metadata[path] = (*metadata.get(path, ()), value)
        chosen = MemoryFilter(exclude=None if exclude == Exclusion() else exclude, metadata=metadata, **own)
        return command(*arguments, filter=chosen, **named)

    return field_options(MemoryFilter, but=but)(field_options(Exclusion, prefix=_EXCLUDE)(with_filter))


FILTERS = tuple(word for one in click.command()(filter_options(lambda: None)).params for word in one.opts)
"""The names of the filter options, for a help section."""
FURTHER_FILTERS = tuple(name for name in FILTERS if name not in ("--kind", "--since", "--session"))
"""The names of the less common filter options."""
