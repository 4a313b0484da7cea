"""Prints the demo, in colour on a terminal and as plain text elsewhere, and counts the promises that hold."""

from __future__ import annotations

import os
import re
import select
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from memory_agent.cli.render import counted
from memory_agent.recall.context import age, endings
from memory_agent.records.memories import RecallResult, RetrievedMemory
from memory_agent.settings import RecallSettings

_WIDTH = 100
_LEAST_WIDTH = 40
_INDENT = 4
_FRAME = 4  # columns used by a frame and its padding
_TEXT_LINES = 2
_BAR = 10
_BLANK_ENDS = re.compile(r" +$", re.MULTILINE)
_ENDING_STYLES = {"approved": "green", "completed": "green", "retried": "yellow", "failed": "red"}
_HEADER = ("score", "relevance", "when", "how it ended", "from")
_LEGEND = (
    "score: determines the ranking. relevance: the probability of being relevant; "
    f"memories below {RecallSettings().min_relevance:g} are omitted."
)


class Screen:
    """Prints scenes, answers and tables, and records which promises hold."""

    def __init__(self, console: Console | None = None) -> None:
        if console is None:
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="replace")
            console = Console(highlight=False)
            has_width = console.is_terminal or "COLUMNS" in os.environ
            console.width = max(_LEAST_WIDTH, min(console.width, _WIDTH)) if has_width else _WIDTH
        self.console = console
        self.broken: list[str] = []
        self.kept = 0
        self.paused_s = 0.0
        self._is_explained = False

    def title(self, text: str, subtitle: str) -> None:
        """Print the title and a subtitle in a frame."""
        self.console.print()
        self._emit(Text(text, style="bold"))
        self._emit(Text(subtitle, style="dim"))

    def gap(self) -> None:
        """Print an empty line."""
        self.console.print()

    def scene(self, text: str) -> None:
        """Print a scene's heading."""
        self.console.print()
        self._emit(Rule(Text(text, style="bold cyan"), align="left", style="cyan"))

    def say(self, text: str, style: str = "") -> None:
        """Print narration, with wrapped lines aligned to its first word."""
        inner = text.lstrip(" ")
        self._emit(Padding(Text(inner, style=style), (0, 0, 0, _INDENT + len(text) - len(inner))))

    @property
    def is_interactive(self) -> bool:
        """Whether a user can read the screen and press a key."""
        return self.console.is_terminal and sys.stdin.isatty()

    def pause(self, text: str, most_s: float) -> None:
        """Print `text`, and wait at most `most_s` seconds for Enter."""
        self.say(text, "bold")
        started_s = time.monotonic()
        if select.select([sys.stdin], [], [], most_s)[0]:
            sys.stdin.readline()
        self.paused_s += time.monotonic() - started_s

    def promise(self, text: str, holds: bool) -> bool:
        """Print and record whether a promise holds."""
        if holds:
            self.kept += 1
        else:
            self.broken.append(text)
        mark = Text("✓", style="bold green") if holds else Text("✗ BROKEN", style="bold red")
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(mark, Text(text, style="green" if holds else "bold red"))
        self._print(line)
        return holds

    def request(self, moment: str, text: str) -> None:
        """Print a query and the time at which it is made."""
        self.console.print()
        self._print(Text(moment, style="bold"))
        self._print(Text(f"“{text}”", style="italic"))

    def answer(self, result: RecallResult, now: datetime) -> None:
        """Print an answer's memories, best first: scores and outcome, then the text."""
        rows = [_figures(memory, now) for memory in result.memories]
        widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
        if max(len(_line(cells, widths)) for cells in (_HEADER, *rows)) > self.console.width - _INDENT:
            widths = [0] * len(_HEADER)  # too narrow for columns: print wrapped lines
        if rows:
            self._print(Text(_line(_HEADER, widths), style="dim"))
        for row, memory in zip(rows, result.memories, strict=True):
            facts = Text(_line(row, widths))
            facts.highlight_words([row[3]], _ENDING_STYLES.get(row[3].partition(" ")[0], "dim"))
            facts.stylize("bold", 0, 4)
            facts.stylize("cyan", 5, 5 + _BAR)
            self._print(facts)
            self.say("  " + self._shortened(memory.record.text))
        how = f"degraded: {', '.join(result.degraded)}" if result.degraded else "complete"
        took = f"{counted(len(rows), 'memory', 'memories')} in {result.took_ms:.0f} ms, {how}"
        self._print(Text(took, style="dim"))
        if rows and not self._is_explained:
            self._print(Text(_LEGEND, style="dim"))
            self._is_explained = True

    def block(self, title: str, text: str) -> None:
        """Print a text in a frame, with long lines wrapped and indented."""
        self.console.print()
        room = self.console.width - _INDENT - _FRAME
        lines = [
            part
            for line in text.splitlines()
            for part in textwrap.wrap(line, room, subsequent_indent="  ", break_on_hyphens=False) or [""]
        ]
        body = Text("\n".join(lines), style="white on grey11" if self.console.is_terminal else "")
        self._print(Panel(body, title=Text(title), title_align="left", border_style="magenta"))

    def table(self, rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> None:
        """Print rows: a name, then right-aligned columns."""
        table = Table(box=None, pad_edge=False, show_header=bool(header), header_style="dim", padding=(0, 3, 0, 0))
        rows = [list(row) for row in rows]
        for place in range(len(rows[0])):
            table.add_column(header[place] if header else "", justify="left" if place == 0 else "right")
        for row in rows:
            table.add_row(*(Text.from_markup(cell) for cell in row))
        self._print(table)

    def listing(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows of text, with the last column shortened to fit the line."""
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        rows = [list(row) for row in rows]
        widths = [max(len(row[place]) for row in (list(header), *rows)) for place in range(len(header) - 1)]
        for name in header:
            table.add_column(name, no_wrap=True)
        room = max(8, self.console.width - _INDENT - sum(widths) - 2 * len(header))
        for row in rows:
            table.add_row(*map(Text, row[:-1]), Text(textwrap.shorten(row[-1], room, placeholder=" …")))
        self._print(table)

    def _shortened(self, text: str) -> str:
        room = _TEXT_LINES * (self.console.width - _INDENT - 2) - _INDENT
        return textwrap.shorten(" · ".join(text.splitlines()), room, placeholder=" …")

    def _print(self, what: RenderableType) -> None:
        self._emit(Padding(what, (0, 0, 0, _INDENT)))

    def _emit(self, what: RenderableType) -> None:
        """Print `what`; if the output is not a terminal, remove trailing blanks."""
        if self.console.is_terminal:
            self.console.print(what)
            return
        with self.console.capture() as captured:
            self.console.print(what)
        self.console.file.write(_BLANK_ENDS.sub("", captured.get()))
        self.console.file.flush()


def how_it_ended(memory: RetrievedMemory) -> str:
    """Return the outcome of a memory or its run, as worded in a context block."""
    return endings(memory).removeprefix("ended: ") or "not known"


def _figures(memory: RetrievedMemory, now: datetime) -> tuple[str, ...]:
    shared = memory.shared if memory.tier == "global" else None
    bar = "█" * round(min(max(memory.sona_score, 0.0), 1.0) * _BAR)
    return (
        f"{memory.sona_score:.2f} {bar:<{_BAR}}",
        "not known" if memory.relevance is None else f"{memory.relevance:.2f}",
        age(memory.record.timestamp, now),
        how_it_ended(memory),
        shared.author if shared is not None else memory.record.run_id or memory.record.source,
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
