"""Damages every file of a data folder, including kinds added later: flips bits, truncates, and zeroes tails.

Each damaged copy is opened and read in another process (`opening_process`). If the file is in a folder that only some
parts read, only these parts are opened. Three outcomes are acceptable: the same answers as
before, one of our errors that reports the damage, or different answers if verification finds the damage (counted
separately). A dead process, an error that is not ours, or an unreported change in the answers is a finding.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .data_folder import ERASED
from .figures import Figures
from .world import ROOT

KINDS = ("flip", "cut", "zero tail")
_DONE = {"flip": "with a bit flipped", "cut": "cut off", "zero tail": "zeroed"}
_IGNORED = {"reserve"}  # reserved space without content
_PAGE_BYTES = 4096
OWN_FOLDER = ("journal", "owners", "spool")
"""The parts with a folder that no other part reads."""


class Damage(NamedTuple):
    """Damage to one file of the folder."""

    file: str
    kind: str
    at: int
    size_bytes: int

    @property
    def harmed_bytes(self) -> int:
        """Number of bytes changed or removed."""
        return 1 if self.kind == "flip" else self.size_bytes - self.at

    @property
    def of(self) -> str:
        """The kind of the file: its path with `*` for the user."""
        parts = Path(self.file).parts
        return "/".join("*" if before == "users" else part for before, part in zip(("", *parts), parts, strict=False))

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that read the file's folder; empty if any part may read it."""
        parts = Path(self.file).parts
        if parts[:2] == ("data", "users"):
            return (*(["erased before"] if parts[2] == ERASED else []), f"user {parts[2]}")  # an opening may erase more
        return next(((one,) for one in OWN_FOLDER if one in parts[:-1]), ())

    def inflict(self, folder: Path) -> None:
        file = folder / self.file
        with file.open("r+b") as opened:
            if self.kind == "cut":
                opened.truncate(self.at)
            elif self.kind == "flip":
                opened.seek(self.at // 8)
                byte = opened.read(1)[0]
                opened.seek(self.at // 8)
                opened.write(bytes([byte ^ 1 << self.at % 8]))
            else:
                opened.seek(self.at)
                opened.write(bytes(self.size_bytes - self.at))


def damages(folder: Path, seeded: random.Random, per_file: int) -> list[Damage]:
    """Return `per_file` instances of damage, cycling through the kinds, for every non-empty file under `folder`."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name not in _IGNORED)
    kinds = itertools.cycle(KINDS)
    return [
        Damage(str(file.relative_to(folder)), kind, _place(kind, size, seeded), size)
        for file in files
        if (size := file.stat().st_size)
        for kind in itertools.islice(kinds, per_file)
    ]


def _place(kind: str, size: int, seeded: random.Random) -> int:
    if kind == "flip":
        page = seeded.randrange(-(-size // _PAGE_BYTES)) * _PAGE_BYTES  # hits page headers as often as page contents
        reach = min(size - page, seeded.choice((64, _PAGE_BYTES)))
        return page * 8 + seeded.randrange(reach * 8)
    if kind == "cut":
        return seeded.randrange(size)
    return max(0, size - seeded.choice((512, _PAGE_BYTES, 4 * _PAGE_BYTES, 16 * _PAGE_BYTES)))


class Opening:
    """The process that opens damaged folders; restarted when it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def read(self, folder: Path, parts: tuple[str, ...] = ()) -> dict[str, Any] | None:
        """Return the findings by part (by default, for all parts), or None if the process died."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.crash.opening_process"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps([str(folder), parts])}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.close()
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:
                self._process = None


def inspect(
    opening: Opening,
    base: Path,
    work: Path,
    todo: list[Damage],
    figures: Figures,
    tell: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Apply each instance of damage to its own copy of `base`, and yield what went wrong."""
    shutil.copytree(base, work)
    sound = opening.read(work)
    shutil.rmtree(work)
    assert sound is not None
    wrong = {name: part for name, part in sound.items() if "error" in part or "bug" in part}
    assert wrong == {}, "the folder was damaged before the test"
    for damage in todo:
        shutil.copytree(base, work)
        damage.inflict(work)
        found = opening.read(work, damage.parts)
        shutil.rmtree(work)
        outcome = _outcome(sound, found)
        tell()
        figures.bytes[f"{damage.of}, {_DONE[damage.kind]}"] += damage.harmed_bytes
        figures.damages[f"{outcome.partition(':')[0]}, {damage.kind}"] += 1
        if outcome.partition(":")[0] not in ("as before", "refused by name", "seen by verification"):
            yield f"{damage}: {outcome}"


def _outcome(sound: dict[str, Any], found: dict[str, Any] | None) -> str:
    if found is None:
        return "the process died"
    outcome = "as before"
    for name, part in found.items():
        if "bug" in part:
            return f"not one of our errors: {name}: {part['bug']}"
        if "error" in part:
            outcome = "refused by name"
        elif part["answers"] != sound[name]["answers"]:
            if not part["verified"]:
                outcome = "seen by verification"
            else:
                return f"different answers, not reported: {name}"
    return outcome
