"""Errors of this package. Each has a stable `code`, and states whether the call may be retried."""

from __future__ import annotations

from typing import ClassVar


class SonaError(Exception):
    """Base class of all errors of this package."""

    code: ClassVar[str] = "sona"
    retryable: ClassVar[bool] = False


class DamagedStateError(SonaError):
    """Saved learner state is unreadable. Rebuild it from the lessons, from which it was derived."""

    code = "sona_state_damaged"


class ShapeError(SonaError):
    """An array does not have the expected shape."""

    code = "sona_shape"

    def __init__(self, expected: int, actual: tuple[int, ...]) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"expected ({self.expected},), got {self.actual}"
