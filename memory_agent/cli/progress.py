"""Progress bars on standard error; standard output is for results. Imports rich only when needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.progress import TaskID

Report = Callable[[str, int, int], None]
"""Called with the name of the work, the amount done, and the total (0 if unknown)."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show a spinner with the elapsed time during work whose progress is unknown. Draws only on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bars.add_task(what, total=None)
        yield


@contextmanager
def progress_bars(unit: Literal["items", "bytes"] = "items") -> Iterator[Report]:
    """Yield a function that draws one bar for each reported name. Draws only on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _what, _done, _total: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    columns = (
        (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(), TimeElapsedColumn())
    )
    description = TextColumn("{task.description}", markup=False)
    bars = Progress(description, BarColumn(), *columns, console=console)
    tasks: dict[str, TaskID] = {}
    guard = threading.Lock()  # a publisher reports from its own thread

    def report(what: str, done: int, total: int) -> None:
        with guard:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None)
                bars.start()
            bars.update(tasks[what], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:
            bars.stop()
