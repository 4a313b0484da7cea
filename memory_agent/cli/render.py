"""Print results as one JSON document or as text, with colours on a terminal.

A memory's text is printed without markup or control characters, so that no memory can control the terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memory_agent.notes import FILE, SECTION
from memory_agent.recall import context
from memory_agent.records.memories import MemoryRecord, RecallResult, RetrievedMemory
from memory_agent.records.shared import Attachment, GlobalRecord, SharedOrigin

_PIPE_WIDTH = 10_000
_INDENT = 3
_QUOTED = "| "
_BLANK_ENDS = re.compile(r" +$", re.MULTILINE)
_NAMES_WIDTH = 24
_LEAST_WIDTH = 20
"""Minimum width of a column with longer texts."""
_GAP = 2
_LEFT_OUT = {
    "event": "from the calling event",
    "run": "from the calling run",
    "session": "from the calling session's last minutes",
    "echo": "from the last minutes, repeating the query",
}
_UNITS = ("B", "KB", "MB", "GB", "TB")


def print_document(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def printed_json(as_json: bool, document: object) -> bool:
    """Print the document if `as_json` is true. Return `as_json`."""
    if as_json:
        print_document(document)
    return as_json


def print_done(as_json: bool, document: object, sentence: str) -> None:
    if not printed_json(as_json, document):
        click.echo(plain(sentence))


def result_document(result: RecallResult, with_embedding: bool) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(result)
    if not with_embedding:
        for memory in document["memories"]:
            del memory["record"]["embedding"]
    return document


def without_vector(record: MemoryRecord | GlobalRecord) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(record)
    del document["embedding"]
    return document


def print_memories(result: RecallResult, now: datetime) -> None:
    for run in result.runs:
        emit(Text(plain(context.run_text(run, now))))
        click.echo()
    for place, memory in enumerate(result.memories, 1):
        print_memory(place, memory, now)
    emit(Text(f"{counted(len(result.memories), 'memory', 'memories')} in {result.took_ms:.1f} ms", style="dim"))
    if result.memories:
        emit(Text(f"recall {result.recall_id}, for use with feedback", style="dim"))
    if result.excluded:
        emit(Text(f"left out: {', '.join(left_out(result))}", style="dim"))
    if result.degraded:
        emit(Text(f"degraded: {', '.join(result.degraded)}", style="yellow"))


def print_memory(place: int | None, memory: RetrievedMemory, now: datetime, *, is_whole: bool = False) -> None:
    """Print a memory. A memory that was found by its id has no `place`. Another user's long memory is truncated unless
    `is_whole` is set.
    """
    emit(_heading(place, memory, now))
    shown_part = None if is_whole else context.excerpt(memory)
    text = Text(plain(memory.record.text if shown_part is None else shown_part.text))
    if memory.tier == "global":
        text = _quoted(text)
    emit(Padding(text, (0, 0, 0, _INDENT)))
    for fact in _beside(memory, shown_part):
        emit(Padding(Text(fact, style="dim"), (0, 0, 0, _INDENT)))
    click.echo()


def _beside(memory: RetrievedMemory, shown_part: context.Excerpt | None) -> Iterable[str]:
    if shown_part is not None:
        yield f"{shown_part.length}; full text: memory-agent shared show {memory.record.id}"
    if memory.shared is not None:
        yield from beside_text(memory.shared)


def beside_text(origin: SharedOrigin) -> Iterable[str]:
    if origin.reference is not None:
        yield f"reference: {one_line(origin.reference)}"
    if origin.attachment is not None:
        yield f"attachment: {file_facts(origin.attachment)}"
        yield f"to fetch it: memory-agent shared attachment {origin.item_id} --out FILE"


def _quoted(text: Text) -> Text:
    """Return another user's text with a bar before each printed line, so that it cannot be mistaken for our output."""
    console = _console()
    lines = text.wrap(console, console.width - _INDENT - len(_QUOTED))
    return Text("\n").join([Text.assemble(_QUOTED, line) for line in lines])


def print_record(record: MemoryRecord) -> None:
    fields = msgspec.structs.asdict(record)
    used = fields.pop("utility")
    for name in ("id", "text", "embedding"):
        fields.pop(name)
    fields |= {"used": used.used, "mean quality of these": used.reward_sum / used.used} if used.used else {}
    unset: tuple[object, ...] = (None, (), {}, 0)
    figures = {name.replace("_", " "): value for name, value in fields.items() if value not in unset or value == 0.0}
    print_figures(f"memory {one_line(record.id)}", figures)
    click.echo()
    emit(Text(plain(record.text)))


def left_out(result: RecallResult) -> list[str]:
    """Return a phrase for each reason why a recall left out the caller's own words, with the number of memories."""
    return [f"{count} {_LEFT_OUT.get(reason, reason)}" for reason, count in result.excluded.items()]


def print_figures(title: str, figures: Mapping[str, object]) -> None:
    emit(Text(title, style="bold"))
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", min_width=_NAMES_WIDTH)
    table.add_column()
    for name, value in figures.items():
        table.add_row(name, Text(plain(shown(value))))
    emit(table)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], whole: str | None = None) -> None:
    """Print rows under their column names, with numbers right-aligned.

    The column `whole`, which contains ids to copy, is never wrapped; if it does not fit, each row becomes a paragraph.
    """
    rows = [list(row) for row in rows]
    cells = [[plain(shown(value)) for value in row] for row in rows]
    emit(Text(title, style="bold"))
    if whole is not None and _width(columns, cells, whole) > _console().width:
        emit(Text(" · ".join(columns), style="dim"))
        for *heading, text in cells:
            emit(Text(" · ".join(heading), style="dim"))
            emit(Padding(Text(text), (0, 0, 0, _INDENT)))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=name == whole)
    for row in cells:
        table.add_row(*map(Text, row))
    emit(table)


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]], whole: str) -> int:
    widths = {name: max(map(cell_len, (name, *column))) for name, *column in zip(columns, *rows, strict=True)}
    least = (width if name == whole else min(width, _LEAST_WIDTH) for name, width in widths.items())
    return sum(least) + _GAP * (len(widths) - 1)


def emit(what: RenderableType) -> None:
    """Print without trailing blanks, wrapped at the terminal's width; output to a pipe is not wrapped."""
    console = _console()
    with console.capture() as captured:
        console.print(what)
    click.echo(_BLANK_ENDS.sub("", captured.get()), nl=False)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M UTC")
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_nested(part)}" for name, part in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_nested, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _nested(value: object) -> str:
    return f"({shown(value)})" if isinstance(value, Mapping | list | tuple) else shown(value)


def counted(number: int, one: str, more: str = "") -> str:
    """Return a number with its noun; `more` is the plural (default: `one` with an s)."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def size(count: int) -> str:
    amount, unit = float(count), _UNITS[0]
    for unit in _UNITS:  # noqa: B007 - the last unit is kept
        if amount < 1000:
            break
        amount /= 1000
    return f"{amount:.3g} {unit}"


def file_facts(file: Attachment) -> str:
    return f"{one_line(file.name)}, {size(file.size_bytes)}, SHA-256 {file.sha256}"


def plain(text: str) -> str:
    """Return `text` with control characters replaced, except for newlines and tabs."""
    return "".join(one if one in "\n\t" or unicodedata.category(one) not in ("Cc", "Cf") else "�" for one in text)


def one_line(text: str) -> str:
    """Like `plain`, but on one line."""
    return plain(" ".join(text.split()))


def shortened(text: str, most_chars: int) -> str:
    """Return the start of a text on one line, with an ellipsis if it is longer than `most_chars`."""
    line = one_line(text)
    return line if len(line) <= most_chars else f"{line[: most_chars - 1]}…"


def _heading(place: int | None, memory: RetrievedMemory, now: datetime) -> Text:
    """Return the heading. Our facts are on the first line; the author's title and tags are below it, so that
    readers can tell them apart.
    """
    record, shared = memory.record, context.shared_origin(memory)
    what = [record.kind, record.source] if shared is None else [shared.content_type]
    facts = [context.age_of_memory(memory, now), *what, *([] if place is None else [_scores(memory)])]
    facts += [fact for fact in (context.endings(memory), context.repeats(memory, now)) if fact]
    facts += [f"provenance: {record.stated_provenance}"] if record.provenance else []
    facts.append(record.id)
    number = " " * _INDENT if place is None else f"{place:>2} "
    heading = Text.assemble((number, "bold cyan"), (" · ".join(facts), "dim"))
    if said := context.sharing(memory):
        heading.append(f"\n{' ' * _INDENT}{said}", "yellow")
    if record.title:
        heading.append(f"\n{' ' * _INDENT}{one_line(record.title)}", "bold")
    if record.type == SECTION and isinstance(file := record.metadata.get(FILE), str):
        heading.append(f"\n{' ' * _INDENT}of {one_line(file)}", "dim")
    if record.tags:
        heading.append(f"\n{' ' * _INDENT}tags: {one_line(', '.join(record.tags))}", "dim")
    return heading


def _scores(memory: RetrievedMemory) -> str:
    cosine = "" if memory.score is None else f", cosine {memory.score:.2f}"
    relevance = "" if memory.relevance is None else f"relevance {memory.relevance:.2f}, "
    return f"{relevance}score {memory.sona_score:.2f} ({memory.retrieval}{cosine})"
