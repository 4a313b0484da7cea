"""Options from the fields of a parameter struct: name, help, type, bounds and default are those of the field.

Help shows options in sections: the first options of a command, then each named section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import msgspec

from memory_agent.cli.options import Moment, Verb, with_options

Pair = tuple[str, Any]
CONNECTION = ("--endpoint", "--key-file", "--data-dir", "--config", "--set")
_WIDEST_CHOICE = 40
"""Characters; a longer list of words is shown in the help text."""
_IDS = ("_id", "_ids")


class MetadataPair(click.ParamType[Pair]):
    """KEY=VALUE; a VALUE that is JSON is read as such, anything else is text."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pair:
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not KEY=VALUE, as in host=staging", param, ctx)
        try:
            return key, msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return key, text


def field_options(
    struct: type[msgspec.Struct], options: Mapping[str, str] | tuple[str, ...], prefix: str = ""
) -> Callable[[Verb], Verb]:
    """Add an option for each named field; the command receives its value by the name of the field.

    `options` maps fields to options where these differ, as in `{"timestamp": "--at"}`; "" means the usual name, which
    is the field's in the singular, without `_id`. `prefix` begins the option and the name of the argument.
    """
    known = {field.name: field for field in msgspec.structs.fields(struct)}
    named = options if isinstance(options, Mapping) else dict.fromkeys(options, "")
    return lambda command: with_options(
        command, [_option(known[name], option or _usual(known[name], prefix), prefix) for name, option in named.items()]
    )


def _usual(field: msgspec.structs.FieldInfo, prefix: str) -> str:
    name = field.name.removesuffix("_ids").removesuffix("_id")
    many = get_origin(_wanted(field)) is tuple
    return "--" + (prefix + (name.removesuffix("s") if many else name)).replace("_", "-")


def _wanted(field: msgspec.structs.FieldInfo) -> Any:
    """Return the type of a field, less its documentation and None."""
    wanted = get_args(field.type)[0]
    return get_args(wanted)[0] if get_origin(wanted) in (UnionType, Union) else wanted


def _option(field: msgspec.structs.FieldInfo, option: str, prefix: str) -> Callable[[Verb], Verb]:
    assert get_origin(field.type) is Annotated, field.name
    wanted, meta = _wanted(field), get_args(field.type)[1]
    if wanted is bool:
        return click.option(option, prefix + field.name, is_flag=True, help=meta.description)
    is_many = get_origin(wanted) in (tuple, dict)
    element = get_args(wanted)[0] if get_origin(wanted) is tuple else wanted
    shown: dict[str, Any] = {"type": _type(element, meta.extra_json_schema or {}), "help": meta.description}
    if element is datetime:
        shown["help"] = f"{meta.description} An age is a time, too: 7d, 12h."
    if is_many:
        # Without a value, a field that is None by default stays None.
        shown |= {"multiple": True, "help": f"{meta.description} May be repeated."}
        if field.default is None:
            shown["callback"] = lambda _context, _parameter, values: values or None
    elif field.default not in (None, msgspec.NODEFAULT):
        shown |= {"default": field.default, "show_default": True}
    if element is str and option != "--title":
        shown["metavar"] = _metavar(field.name, option)
    if isinstance(shown["type"], click.Choice) and len("|".join(shown["type"].choices)) > _WIDEST_CHOICE:
        shown["metavar"] = option.removeprefix("--").upper()
    return click.option(option, prefix + field.name, **shown)


def _type(element: Any, bounds: Mapping[str, Any]) -> click.ParamType[Any]:
    """Return the type of an option for values of a field, or of one element of it."""
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


class SectionedCommand(click.Command):
    """A command with help in sections: the options that `sections` does not name first, then each section."""

    def __init__(self, *arguments: Any, sections: Mapping[str, tuple[str, ...]], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._sections = {**sections, "Daemon and settings": CONNECTION}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        rows = {tuple(one.opts): row for one in options if (row := one.get_help_record(ctx)) is not None}
        in_sections = {option for names in self._sections.values() for option in names}
        first = [row for names, row in rows.items() if in_sections.isdisjoint(names)]
        shown = {"Options": first} | {
            title: [row for own, row in rows.items() if not set(names).isdisjoint(own)]
            for title, names in self._sections.items()
        }
        for title, definitions in shown.items():
            with formatter.section(title):
                formatter.write_dl(definitions)
