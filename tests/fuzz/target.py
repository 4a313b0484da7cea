"""What a fuzz target is: a reader of bytes that may raise only our errors, and valid inputs to begin from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memory_agent.errors import MemoryAgentError
from relay import RelayError
from sona.errors import SonaError

Form = Literal["msgpack", "json", "bytes"]
CORPUS = Path(__file__).parent / "corpus"
OURS: tuple[type[Exception], ...] = (RelayError, MemoryAgentError, SonaError)


@dataclass(frozen=True)
class Target:
    """`run` raises for a finding and for nothing else. `samples` are valid; `form` says how they may be taken apart."""

    name: str
    run: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    form: Form = "bytes"

    @property
    def corpus(self) -> list[Path]:
        """The inputs that once failed."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())


def refused(read: Callable[..., object], *arguments: object) -> bool:
    """Call `read`; say whether it refused with one of our errors, which must be able to say what they are."""
    try:
        read(*arguments)
    except OURS as error:
        str(error)
        return True
    return False


def alone(*readers: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Return a target's function that hands the input to each of the readers."""

    def run(data: bytes) -> None:
        for read in readers:
            with suppress(*OURS):
                read(data)

    return run
