"""The errors of this package: one root, each with a stable `code` and whether a retry may help."""

from __future__ import annotations

from typing import ClassVar


class SonaError(Exception):
    """Root of all errors of this package."""

    code: ClassVar[str] = "sona"
    retryable: ClassVar[bool] = False


class DamagedStateError(SonaError):
    """Saved learner state cannot be read. It is derived data: relearn."""

    code = "sona_state_damaged"


class ShapeError(SonaError):
    """A vector has other dimensions than the learner."""

    code = "sona_shape"

    def __init__(self, expected: int, actual: tuple[int, ...]) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"expected ({self.expected},), got {self.actual}"
