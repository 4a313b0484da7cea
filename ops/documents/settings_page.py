"""`ops/SETTINGS.md`: every setting with its type, default and meaning, from the structs that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from memory_agent.settings import REMOVED, RENAMED, Settings

_OPEN_ENDED = {">= 0": "0 or more", "> 0": "above 0"}


@dataclass(frozen=True)
class Setting:
    """One setting: its dotted name, its type and its default, as text."""

    name: str
    type: str
    default: str


def all_settings() -> list[Setting]:
    """Return every setting, in the order of the TOML file."""
    return list(_walk(inspect.type_info(Settings), ""))


_INTRODUCTION = """# Settings

Made by `python -m ops.documents`; change `ops/documents/meanings.toml`, not this page.

Defaults, then the TOML file of `--config`, then variables, then `--set NAME=VALUE`: the later wins.
The variable of `recall.mode` is `MEMORY_AGENT_RECALL__MODE`. A name that does not exist and a value out of
its bounds are refused by name. Sizes are bytes, durations seconds (`_s`) or milliseconds (`_ms`). Read
once, when a program starts; a daemon keeps its own.

```toml
[recall]
vector_weight = 0.4

[relay.broker]
pub_bind = ["tcp://127.0.0.1:5555"]
```"""


def settings_page(meanings: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """Return the page. Raises `KeyError` naming the settings without a meaning in `meanings.toml`."""
    if missing := [setting.name for setting in all_settings() if setting.name not in meanings]:
        raise KeyError(f"no meaning in ops/documents/meanings.toml: {', '.join(missing)}")
    lines = [_INTRODUCTION]
    table = None
    for setting in all_settings():
        part, _, name = setting.name.rpartition(".")
        if part != table:
            lines += _head(part)
            table = part
        lines.append(f"| `{name}` | {setting.type} | {setting.default} | {meanings[setting.name]} |")
    lines += ["", "## Renamed settings", ""]
    lines += ["Former names are still read, with a warning; both together are an error."]
    lines += ["", "| former name | name |", "|---|---|"]
    lines += [f"| `{former}` | `{present}` |" for former, present in RENAMED.items()]
    lines += ["", "## Removed settings", "", "They have no effect; a warning says so."]
    lines += ["", "| setting | why |", "|---|---|"]
    lines += [f"| `{setting}` | {reason} |" for setting, reason in REMOVED.items()]
    lines += ["", "## Variables that are no settings", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in variables.items()]
    return "\n".join(lines) + "\n"


def _head(part: str) -> list[str]:
    title = f"## `[{part.replace('[]', '')}]`" if part else "## At the top"
    if part.endswith("[]"):
        title = f"## `[[{part.removesuffix('[]')}]]`, one for each table"
    return ["", title, "", "| setting | type | default | meaning |", "|---|---|---|---|"]


def _walk(struct: Any, prefix: str) -> Iterator[Setting]:
    tables = [field for field in struct.fields if isinstance(field.type, inspect.StructType)]
    for field in struct.fields:
        if field not in tables:
            name = prefix + field.encode_name
            yield Setting(name, _type(field.type), _default(field))
    for field in struct.fields:
        if isinstance(field.type, inspect.VarTupleType) and isinstance(field.type.item_type, inspect.StructType):
            yield from _walk(field.type.item_type, f"{prefix}{field.encode_name}[].")
    for field in tables:
        yield from _walk(field.type, f"{prefix}{field.encode_name}.")


def _type(kind: Any) -> str:
    if isinstance(kind, inspect.UnionType):
        return ", or ".join(_type(one) for one in kind.types)
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in kind.values)
    if isinstance(kind, inspect.VarTupleType):
        return (
            "list of tables" if isinstance(kind.item_type, inspect.StructType) else f"list of {_type(kind.item_type)}"
        )
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.StrType):
        return "text"
    if isinstance(kind, inspect.DictType):
        return f"table of {_type(kind.value_type)}s"
    return f"{'whole number' if isinstance(kind, inspect.IntType) else 'number'}{_bounds(kind)}"


def _bounds(kind: Any) -> str:
    named = ((">=", kind.ge), (">", kind.gt), ("<=", kind.le), ("<", kind.lt))
    bounds = [f"{sign} {_number(value)}" for sign, value in named if value is not None]
    if kind.ge is not None and kind.le is not None:
        return f", {_number(kind.ge)} to {_number(kind.le)}"
    return f", {_OPEN_ENDED.get(bounds[0], bounds[0].replace('>= ', '') + ' or more')}" if bounds else ""


def _default(field: Any) -> str:
    if field.required:
        return "(needed)"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _number(value)
    return f"`{value}`" if value else "none" if isinstance(value, tuple) else "empty"


def _number(value: float) -> str:
    """Format whole binary units with their unit, and other large numbers with commas."""
    if isinstance(value, int) and value >= 1 << 20:
        for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
            if value % (1 << shift) == 0:
                return f"{value >> shift} {unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
