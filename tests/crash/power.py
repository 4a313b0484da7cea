"""Power cuts: the copied disk contains everything acknowledged, except in the control, where nothing is flushed."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from relay import RelayError

from .disk import cut_power, image_disk
from .figures import ENCRYPTED, Figures
from .history import Finding, History, check
from .reading import lines, read_history, read_journal, read_records
from .world import World, wait_until


@dataclass
class Cut:
    """The number of events acknowledged before the power cut, and what the disk contains afterwards."""

    acked: int
    found: int
    findings: list[Finding]


def power_cut(
    shim: Path, promises: int, figures: Figures, *, disk_lies: bool = False, is_encrypted: bool = False
) -> Cut:
    """Run a world for this many promises, cut the power and check; then continue on the copied disk and check again.

    With `disk_lies` (the control), the relay and the owner never flush, and the world is not continued. With
    encryption, the keys are first created on the same disk. Raises `CannotMountError`.
    """
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        folder = Path(name)
        image, copy = folder / "disk", folder / "copy"
        _work_and_cut(folder, image, copy, shim, promises, disk_lies=disk_lies, is_encrypted=is_encrypted)
        with image_disk(copy, folder / "after") as disk:
            acked = len(lines(folder / "notes" / "plain.acked"))
            if disk_lies:
                return Cut(acked, _found(disk / "data"), [])
            history = _history(disk / "data", folder / "notes")
            findings = check(history)
            figures.kills[f"all at once{ENCRYPTED * is_encrypted}, by a power cut"] += 1
            findings += _go_on(folder, disk / "data", shim, figures, is_encrypted=is_encrypted)
            return Cut(acked, len(history.journal), findings)


def _work_and_cut(
    folder: Path, image: Path, copy: Path, shim: Path, promises: int, *, disk_lies: bool, is_encrypted: bool
) -> None:
    with (
        image_disk(image, folder / "before") as disk,
        World(folder, shim, data_dir=disk / "data", pace_s=0.02, is_encrypted=is_encrypted) as world,
    ):
        if disk_lies:
            for part in (world.relay, world.owner):
                part.order.give("lie", "sync", "/before/", 1, 0)
        world.start(world.relay, world.plain, world.owner)
        wait_until(lambda: world.acked >= promises and world.taken >= promises // 2, "promises before the power cut")
        for part in (world.relay, world.owner):
            part.stop()
        cut_power(image, copy)
        world.plain.kill()


def _found(data_dir: Path) -> int:
    try:
        return len(read_journal(data_dir)[0])
    except RelayError:  # there is no journal file
        return 0


def _history(data_dir: Path, notes: Path) -> History:
    """Return the contents of the disk before derived files are rebuilt."""
    return replace(read_history(data_dir, notes, with_stores=False), stores=read_records(data_dir))


def _go_on(folder: Path, data_dir: Path, shim: Path, figures: Figures, *, is_encrypted: bool) -> list[Finding]:
    """Restart everything on the copied disk, as after a boot, and check everything at the end."""
    boot_id = folder / "boot-id"
    boot_id.write_text("another-boot\n")
    after = folder / "next"
    shutil.copytree(folder / "notes", after / "notes")
    with World(after, shim, data_dir=data_dir, pace_s=0.02, is_encrypted=is_encrypted) as world:
        world.owner.order.boot_id = boot_id
        world.start(world.relay, world.owner, world.plain)
        world.finish()
        history = read_history(data_dir, world.notes)
        findings = check(history)
        figures.add(history, findings)
        return findings
