"""Raises KeyboardInterrupt at each place in the given modules at which Python can run a signal handler.

These places are the start of a function, the end of a call to C code, and a backward jump (`CHECK_EVAL_BREAKER` in
CPython's ceval.c).
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

_Made = TypeVar("_Made")

_BACKWARDS = ("JUMP_BACKWARD", "POP_JUMP_BACKWARD")
_PATIENCE_S = 30.0


class _Interrupt:
    """Raises once, when this thread reaches the place with index `place` (from 0) in the code of the given modules."""

    def __init__(self, modules: tuple[ModuleType, ...], place: int) -> None:
        self._files = {module.__file__ for module in modules}
        self._left = place
        self._former: dict[FrameType, int] = {}
        self.where = ""

    def __enter__(self) -> _Interrupt:
        sys.setprofile(self._at_call)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        self._former.clear()

    def _at_call(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_return"):
            self._pass(frame)

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._at_jump

    def _at_jump(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "return":
            self._former.pop(frame, None)
        elif event == "opcode":
            former, self._former[frame] = self._former.get(frame), frame.f_lasti
            if former in _jumps_backwards(frame.f_code):
                self._pass(frame)
        return self._at_jump

    def _pass(self, frame: FrameType) -> None:
        if self.where or frame.f_code.co_filename not in self._files:
            return
        self._left -= 1
        if self._left < 0:
            self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt


@cache
def _jumps_backwards(code: CodeType) -> frozenset[int]:
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname.startswith(_BACKWARDS))


def interrupt_everywhere(
    modules: tuple[ModuleType, ...],
    make: Callable[[], _Made],
    act: Callable[[_Made], object],
    check: Callable[[_Made], None],
) -> list[str]:
    """For each place in `modules`: create an object, act on it with an interrupt at this place, and check the object.

    `check` runs in another thread, so that a hang is reported as a failure. Returns the places.
    """
    places: list[str] = []
    while True:
        made = make()
        interrupt = _Interrupt(modules, len(places))
        try:
            with interrupt:
                act(made)
        except KeyboardInterrupt:
            assert interrupt.where
        _in_another_thread(check, made, interrupt.where)
        if not interrupt.where:
            return places
        places.append(interrupt.where)


def _in_another_thread(check: Callable[[_Made], None], made: _Made, where: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            check(made)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    assert not thread.is_alive(), f"hangs after an interrupt in {where or 'nothing'}"
    assert not failures, f"after an interrupt in {where or 'nothing'}: {failures[0]!r}"
