"""Move several folders atomically, with a redo log: the plan is durable before the first move.

After a crash, the next process that owns the data folder completes the plan. Redoing a move has no effect.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memory_agent.errors import StoreDamagedError
from memory_agent.storage.folders import STAGE
from relay import described
from relay.disk import add_checksum, flush, verify_checksum, write_private

_PLAN = "plan"


class Move(msgspec.Struct, frozen=True):
    source: str
    target: str


def move_folders(data_dir: Path, moves: Sequence[tuple[Path, Path]]) -> None:
    """Perform all moves in order. Durable. After an `OSError`, `finish_moves` performs the remaining moves."""
    (data_dir / STAGE).mkdir(mode=0o700, exist_ok=True)
    plan = [Move(*(path.relative_to(data_dir).as_posix() for path in pair)) for pair in moves]
    write_private(data_dir / STAGE / _PLAN, add_checksum(msgspec.json.encode(plan)))
    _carry_out(data_dir, plan)


def finish_moves(data_dir: Path) -> bool:
    """Finish the moves of a killed process; return whether there were any. Raises `StoreDamagedError` and `OSError`."""
    file = data_dir / STAGE / _PLAN
    if not file.exists():
        return False
    try:
        plan = msgspec.json.decode(verify_checksum(file.read_bytes()), type=described(list[Move]))
    except (ValueError, RecursionError) as error:
        raise StoreDamagedError(f"{file}: the plan of an interrupted restore is damaged: {error}") from error
    if not all(_lies_inside(path) for move in plan for path in (move.source, move.target)):
        raise StoreDamagedError(f"{file}: the plan of an interrupted restore contains a path outside the data folder")
    _carry_out(data_dir, plan)
    return True


def has_unfinished_moves(data_dir: Path) -> bool:
    """Whether moves were started but not finished."""
    return (data_dir / STAGE / _PLAN).exists()


def _lies_inside(path: str) -> bool:
    parts = Path(path).parts
    return bool(parts) and not Path(path).is_absolute() and ".." not in parts and "\0" not in path


def _carry_out(data_dir: Path, plan: Sequence[Move]) -> None:
    for move in plan:
        source, target = data_dir / move.source, data_dir / move.target
        if move.source.startswith(STAGE) and source.exists() and target.exists():
            reason = f"was created before a restore finished; the restored files are in {source}"
            raise StoreDamagedError(f"{target}: {reason}")
        if source.exists() and not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            source.rename(target)
            flush(target.parent)
            flush(source.parent)
    shutil.rmtree(data_dir / STAGE)
    flush(data_dir)
