"""Test power cuts and full disks: all acknowledged data is on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import skip
from .disk import CannotMountError, fill, small_disk
from .figures import Figures
from .power import power_cut
from .world import World, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_acknowledged_events_survive_a_power_cut(shim: Path) -> None:
    try:
        cut = power_cut(shim, 60, Figures())
    except CannotMountError as error:
        skip(str(error))
    assert cut.findings == []
    assert cut.found >= cut.acked >= 60


def test_a_disk_that_does_not_flush_loses_it_so_the_test_of_the_power_cut_can_fail(shim: Path) -> None:
    try:
        cut = power_cut(shim, 60, Figures(), disk_lies=True)
    except CannotMountError as error:
        skip(str(error))
    assert cut.acked >= 60
    assert cut.found < cut.acked


def test_a_disk_that_is_full_of_something_else_stops_intake_and_loses_nothing(short_folder: Path) -> None:
    try:
        with (
            small_disk(short_folder / "disk", 48 << 20) as disk,
            World(short_folder, data_dir=disk / "data", pace_s=0.02) as world,
        ):
            world.start()
            wait_until(lambda: world.taken > 100, "memories before the disk is full")
            ballast = fill(disk)
            (world.notes / "unbounded").touch()  # publishing continues although nothing is ingested
            wait_until(lambda: "intake.refused" in world.relay.log(), "the relay logs that the disk is full")
            ballast.unlink()
            (world.notes / "unbounded").unlink()
            taken = world.taken
            wait_until(lambda: world.taken > taken + 50, "it continues by itself when there is room again")
            world.finish()
            assert world.findings() == []
    except CannotMountError as error:
        skip(str(error))
