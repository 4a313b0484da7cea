"""Prints the demo, in colour on a terminal and as plain text elsewhere, and counts the promises that hold."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from memory_agent.recall.context import age, ending
from memory_agent.records import RecallResult, RetrievedMemory

_WIDTH = 108
_INDENT = 4
_TEXT_LINES = 3
_BAR = 10
_BLANK_ENDS = re.compile(r" +$", re.MULTILINE)
_ENDING_STYLES = ((0.7, "green"), (0.2, "yellow"), (0.0, "red"))


class Screen:
    """Prints scenes, answers and tables; collects the promises that did not hold."""

    def __init__(self, console: Console | None = None) -> None:
        if console is None:
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="replace")
            console = Console(highlight=False)
            console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
        self.console = console
        self.broken: list[str] = []
        self.kept = 0

    def title(self, text: str, lines: Iterable[str]) -> None:
        """Print the title."""
        self.console.print()
        self.console.print(Text(text, style="bold"))
        for line in lines:
            self.console.print(Text(line, style="dim"))

    def gap(self) -> None:
        """Print an empty line."""
        self.console.print()

    def scene(self, text: str) -> None:
        """Print the heading of a scene."""
        self.console.print()
        self._emit(Rule(Text(text, style="bold cyan"), align="left", style="cyan"))

    def say(self, text: str, style: str = "") -> None:
        """Print a line of the narration."""
        self._print(Text(text, style=style))

    def promise(self, text: str, holds: bool) -> bool:
        """Print whether a promise holds, and collect one that does not."""
        if holds:
            self.kept += 1
        else:
            self.broken.append(text)
        mark = Text("✓ ", style="bold green") if holds else Text("✗ BROKEN ", style="bold red")
        self._print(mark + Text(text, style="green" if holds else "bold red"))
        return holds

    def request(self, moment: str, text: str) -> None:
        """Print a query and its moment."""
        self.console.print()
        self._print(Text(moment, style="bold"))
        self._print(Text(f"“{text}”", style="italic"))

    def answer(self, result: RecallResult, now: datetime) -> None:
        """Print the memories of an answer, best first, with scores and how they ended."""
        table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("score", no_wrap=True)
        table.add_column("relevance", justify="right", no_wrap=True)
        table.add_column("when", no_wrap=True, style="dim")
        table.add_column("how it ended", no_wrap=True)
        table.add_column("what came back", ratio=1)
        for memory in result.memories:
            table.add_row(*self._row(memory, now))
        self._print(table)
        how = f"degraded: {', '.join(result.degraded)}" if result.degraded else "no part was missing"
        self._print(Text(f"{len(result.memories)} memories in {result.took_ms:.0f} ms, {how}", style="dim"))

    def block(self, title: str, text: str) -> None:
        """Print a text verbatim in a frame."""
        self.console.print()
        body = Text(text, style="white on grey11" if self.console.is_terminal else "")
        self._print(Panel(body, title=Text(title), title_align="left", border_style="magenta", width=_WIDTH - _INDENT))

    def table(self, rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> None:
        """Print rows: the first column a name, the others right-aligned."""
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
        room = max(24, self.console.width - _INDENT - sum(widths) - 2 * len(header))
        for row in rows:
            table.add_row(*map(Text, row[:-1]), Text(textwrap.shorten(row[-1], room, placeholder=" …")))
        self._print(table)

    def _row(self, memory: RetrievedMemory, now: datetime) -> tuple[Text | str, ...]:
        record = memory.record
        score = min(max(memory.sona_score, 0.0), 1.0)
        bar = "█" * round(score * _BAR)
        text = " ".join(record.text.split())
        shown = textwrap.shorten(text, _TEXT_LINES * self._text_width, placeholder=" …")
        return (
            Text.assemble((f"{memory.sona_score:.2f} ", "bold"), (f"{bar:<{_BAR}}", "cyan")),
            "-" if memory.relevance is None else f"{memory.relevance:.2f}",
            age(record.timestamp, now),
            _ending(record.quality_score),
            Text.assemble((f"{record.run_id or record.source} ", "dim"), shown),
        )

    @property
    def _text_width(self) -> int:
        return max(24, self.console.width - _INDENT - 65)

    def _print(self, what: RenderableType) -> None:
        self._emit(Padding(what, (0, 0, 0, _INDENT)))

    def _emit(self, what: RenderableType) -> None:
        """Print, without trailing blanks unless on a terminal."""
        if self.console.is_terminal:
            self.console.print(what)
            return
        with self.console.capture() as captured:
            self.console.print(what)
        self.console.file.write(_BLANK_ENDS.sub("", captured.get()))
        self.console.file.flush()


def _ending(quality: float | None) -> Text:
    if quality is None:
        return Text("-", style="dim")
    style = next(style for least, style in _ENDING_STYLES if quality >= least)
    word = ending(quality)
    return Text(f"{word if len(word) < 12 else 'completed'} ({quality:.1f})", style=style)
