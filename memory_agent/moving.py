"""Folders put in their places as one step: the plan is on the disk before the first one moves.

Killed in the middle, a data folder would have neither what was there nor what was to come. So whoever finds a plan
carries it out to its end: each move is done where its source is there and its target is not, as often as that takes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memory_agent.errors import StoreDamagedError
from memory_agent.storage.folders import STAGE
from relay.disk import add_checksum, flush, verify_checksum, write_private

_PLAN = "plan"


class Move(msgspec.Struct, frozen=True):
    """One folder, by paths below the data folder."""

    source: str
    target: str


def move_all(data_dir: Path, moves: Sequence[tuple[Path, Path]]) -> None:
    """Make all moves, in order, or have the next `finish_moving` make the rest; then the stage is removed.

    Durable on return. Raises `OSError`; the plan stands then.
    """
    (data_dir / STAGE).mkdir(mode=0o700, exist_ok=True)
    plan = [Move(*(path.relative_to(data_dir).as_posix() for path in pair)) for pair in moves]
    write_private(data_dir / STAGE / _PLAN, add_checksum(msgspec.json.encode(plan)))
    _carry_out(data_dir, plan)


def finish_moving(data_dir: Path) -> bool:
    """Make the moves that a killed process did not get to; say whether there were any. Nobody uses the folder.

    Raises `OSError`, `StoreDamagedError` when the plan is not as it was written.
    """
    file = data_dir / STAGE / _PLAN
    if not file.exists():
        return False
    try:
        plan = msgspec.json.decode(verify_checksum(file.read_bytes()), type=list[Move])
    except (ValueError, RecursionError) as error:
        raise StoreDamagedError(f"{file}: the plan of a restore that was broken off is damaged: {error}") from error
    if not all(_lies_inside(path) for move in plan for path in (move.source, move.target)):
        raise StoreDamagedError(f"{file}: the plan of a restore that was broken off leads out of the data folder")
    _carry_out(data_dir, plan)
    return True


def is_moving(data_dir: Path) -> bool:
    """Say whether moves were begun and not made to the end."""
    return (data_dir / STAGE / _PLAN).exists()


def _lies_inside(path: str) -> bool:
    parts = Path(path).parts
    return bool(parts) and not Path(path).is_absolute() and ".." not in parts and "\0" not in path


def _carry_out(data_dir: Path, plan: Sequence[Move]) -> None:
    for move in plan:
        source, target = data_dir / move.source, data_dir / move.target
        if move.source.startswith(STAGE) and source.exists() and target.exists():
            raise StoreDamagedError(f"{target}: made anew before a restore was through, whose files are in {source}")
        if source.exists() and not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            source.rename(target)
            flush(target.parent)
            flush(source.parent)
    shutil.rmtree(data_dir / STAGE)
    flush(data_dir)
