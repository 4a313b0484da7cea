"""Ctrl-C in a command that says at its end what it has done: it stops between two steps."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Self, TypeVar

_Result = TypeVar("_Result")


class Interrupts:
    """In this block the first Ctrl-C sets `heard` and ends what `cut_short` runs; the second one raises at once.

    Where SIGINT is ignored, as in a background job of a shell, it stays so.
    """

    def __init__(self) -> None:
        self.heard = False
        self._may_cut = False

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._hear:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def cut_short(self, step: Callable[[], _Result]) -> _Result | None:
        """Return what `step` returns; None where Ctrl-C ends it, or came before.

        >>> with Interrupts() as interrupts:
        ...     interrupts.cut_short(lambda: "the next line")
        'the next line'
        """
        try:
            self._may_cut = True
            return None if self.heard else step()
        except KeyboardInterrupt:
            return None
        finally:
            self._may_cut = False

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        is_second, self.heard = self.heard, True
        if self._may_cut or is_second:
            raise KeyboardInterrupt
