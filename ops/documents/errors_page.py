"""Write `ops/ERRORS.md`: every error code, its meaning, whether it is retryable, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import memory_agent.errors
import relay.errors
import sona.errors
from memory_agent.recall.query import REASONS


def all_errors(root: type[Exception]) -> Iterator[Any]:
    """Yield the errors of a package, the root first."""
    yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


PACKAGES: dict[str, list[Any]] = {
    "memory_agent": list(memory_agent.errors.ERRORS.values()),
    "relay": list(relay.errors.ERRORS.values()),
    "sona": list(all_errors(sona.errors.SonaError)),
}


def errors_page(meanings: Mapping[str, Any]) -> str:
    """Return the page. Raises KeyError with a code that has no advice."""
    lines = [
        "# Errors",
        "",
        "Made by `python -m ops.documents`; change `ops/documents/meanings.toml`, not this page.",
        "",
        "Codes are stable: programs may rely on them (`error.code`, also with `--json`). *Retryable*: the",
        "same call may succeed later. Messages name the field, file or process, and never contain memory text.",
    ]
    for package, classes in PACKAGES.items():
        lines += ["", f"## `{package}`", "", "| code | meaning | retryable | what to do |", "|---|---|---|---|"]
        for error in classes:
            what = (inspect.getdoc(error) or "").splitlines()[0]
            again = "yes" if error.retryable else "no"
            lines.append(f"| `{error.code}` | {what} | {again} | {meanings['errors'][package][error.code]} |")
    lines += _words("Codes of quarantined events", "code", meanings["quarantine"], list(meanings["quarantine"]))
    lines += ["", "Besides these: any code above, most often `malformed_event` and `unhandled_event`."]
    lines += _words("Reasons in `degraded`", "reason", meanings["degraded"], list(REASONS))
    return "\n".join(lines) + "\n"


def _words(title: str, column: str, meanings: Mapping[str, str], words: list[str]) -> list[str]:
    head = ["", f"## {title}", "", f"| {column} | meaning |", "|---|---|"]
    return head + [f"| `{word}` | {meanings[word]} |" for word in words]
