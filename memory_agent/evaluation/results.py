"""Writes and reads a run's results as JSON lines, without texts: a header, then one line per question."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation.dataset import read_file
from memory_agent.evaluation.trial import Ranked, Run
from memory_agent.records.memories import Mode
from memory_agent.settings import Settings, rename_settings
from memory_agent.version import VERSION
from relay import described

_Part = TypeVar("_Part")

FORMAT = "memory-agent-results/1"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A run's input and configuration."""

    format: str
    dataset: str
    digest: str
    users: tuple[str, ...]
    mode: Mode
    top_k: int
    embedded: bool
    version: str
    model: str | None
    settings: dict[str, Any] | None  # settings that affect ranking; None for a daemon that was already running
    left_out: tuple[str, ...]  # the ids of questions without evidence


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question: the ranked items with their sessions, the relevant items with grades, and the metrics."""

    id: str
    user: str
    category: str
    ranked: Ranked
    relevant: dict[str, int]
    metrics: dict[str, float]
    took_ms: float
    degraded: tuple[str, ...]
    same: dict[str, Ranked] = {}  # the duplicates merged into each item
    group: str = ""


_OF_EMBEDDER = ("type", "model", "scheme", "max_tokens", "dimensions", "passage_chars")


@dataclass(frozen=True)
class Results:
    file: Path
    header: Header
    lines: tuple[Line, ...]


def ranking_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that affect ranking, without paths."""
    embedder, store, ingest = settings.embedder, settings.store, settings.ingest
    return {
        "recall": msgspec.to_builtins(settings.recall),
        "learning": msgspec.to_builtins(settings.learning),
        "embedder": {name: value for name, value in msgspec.to_builtins(embedder).items() if name in _OF_EMBEDDER},
        "store": {"exact_search_limit": store.exact_search_limit, "expansion_search": store.expansion_search},
        "ingest": {name: value for name, value in msgspec.structs.asdict(ingest).items() if not isinstance(value, str)},
    }


@contextmanager
def results_file(file: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `file` when the block succeeds.

    Creates the temporary file immediately, so a missing folder is reported before the measurement starts. Raises
    `InvalidInputError` if the file cannot be written.
    """
    place = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if file.is_dir():
            raise IsADirectoryError(0, "is a folder")
        place.touch()
    except OSError as error:
        raise InvalidInputError(str(file), f"cannot be written: {error.strerror}") from error
    try:
        yield place
        place.replace(file)
    finally:
        place.unlink(missing_ok=True)


def write_results(run: Run, file: Path) -> None:
    encode = msgspec.json.encode
    file.write_bytes(b"".join(encode(part) + b"\n" for part in (_header(run), *_lines(run))))


def read_results(file: Path) -> Results:
    """Read a file that `write_results` wrote. Raises `InvalidInputError` (with file and line)."""
    content = read_file(file).splitlines()
    header = _decoded(file, 1, content[0] if content else b"", Header)
    if header.format != FORMAT:
        raise InvalidInputError(f"{file}:1", f"format: expected {FORMAT}, got {header.format}")
    if header.settings is not None:
        rename_settings(header.settings, lambda _: None)  # keeps files from earlier versions comparable
    lines = tuple(_decoded(file, number, line, Line) for number, line in enumerate(content[1:], 2))
    return Results(file, header, lines)


def _header(run: Run) -> Header:
    plan = run.plan
    return Header(
        format=FORMAT,
        dataset=plan.dataset.name,
        digest=plan.dataset.digest,
        users=tuple(history.user for history in plan.dataset.histories),
        mode=plan.mode,
        top_k=plan.top_k,
        embedded=run.embedded,
        version=VERSION,
        model=run.model,
        settings=ranking_settings(plan.settings) if run.settings_known else None,
        left_out=tuple(
            question.id for part in plan.dataset.histories for question in part.questions if not question.relevant
        ),
    )


def _lines(run: Run) -> Iterator[Line]:
    for answer in run.answers:
        yield Line(
            id=answer.question.id,
            user=answer.user,
            category=answer.question.category,
            ranked=answer.ranked,
            relevant=answer.question.relevant,
            metrics=answer.metrics,
            took_ms=round(answer.took_ms, 3),
            degraded=answer.degraded,
            same=answer.same,
            group=answer.question.group,
        )


def _decoded(file: Path, number: int, line: bytes, type_: type[_Part]) -> _Part:
    try:
        return msgspec.json.decode(line, type=described(type_))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{file}:{number}", f"is not a line of a results file (written by --results): {error}"
        ) from error
