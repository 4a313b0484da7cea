"""Every error this package raises on purpose: one root, a stable `code`, and whether trying again may help."""

from __future__ import annotations

from typing import ClassVar


class SonaError(Exception):
    """Root of all errors of this package."""

    code: ClassVar[str] = "sona"
    retryable: ClassVar[bool] = False


class DamagedStateError(SonaError):
    """Saved learner state cannot be read; begin anew, it is derived."""

    code = "sona_state_damaged"


class ShapeError(SonaError):
    """A vector does not have the dimensions that the learner was made for."""

    code = "sona_shape"

    def __init__(self, expected: int, actual: tuple[int, ...]) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"expected ({self.expected},), got {self.actual}"
