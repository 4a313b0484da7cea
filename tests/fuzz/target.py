"""A fuzz target: a function that reads bytes and may raise only our errors, together with valid sample inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memory_agent.errors import MemoryAgentError
from relay import RelayError
from sona import SonaError

Form = Literal["msgpack", "json", "bytes"]
CORPUS = Path(__file__).parent / "corpus"
OURS: tuple[type[Exception], ...] = (RelayError, MemoryAgentError, SonaError)


@dataclass(frozen=True)
class Target:
    """`run` raises only if it finds a fault. `samples` are valid inputs; `form` determines how they are mutated."""

    name: str
    run: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    form: Form = "bytes"

    @property
    def corpus(self) -> list[Path]:
        """The inputs that have failed before."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())


def refused(read: Callable[..., object], *arguments: object) -> bool:
    """Call `read`; return whether it raised one of our errors. The error's message must render."""
    try:
        read(*arguments)
    except OURS as error:
        str(error)
        return True
    return False


def alone(*readers: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Return a target function that passes the input to each reader."""

    def run(data: bytes) -> None:
        for read in readers:
            with suppress(*OURS):
                read(data)

    return run
