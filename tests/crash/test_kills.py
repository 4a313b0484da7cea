"""Test that guarantees hold when processes are killed at any moment and disks fail. `make crash` runs for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .campaign import FAULTS, draw_kills, fault_round, kill_round
from .figures import Figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_whatever_is_killed_nothing_acknowledged_is_lost_duplicated_reordered_resurrected_or_misplaced(
    shim: Path, seed: int
) -> None:
    counts = {"relay": 3, "owner": 4, "plain": 1, "spooling": 2}
    figures = Figures()
    kill_round(seed, draw_kills(random.Random(seed), counts, has_shim=True), shim, figures)
    assert sum(figures.kills.values()) == 10


def test_the_same_with_encryption_and_the_relay_killed_while_it_creates_the_keys(shim: Path, seed: int) -> None:
    figures = Figures()
    kill_round(seed, draw_kills(random.Random(seed), {"relay": 1, "owner": 1}, True), shim, figures, is_encrypted=True)
    assert figures.kills["relay (encrypted), while it makes a key"] >= 2
    assert sum(figures.kills.values()) >= 4


def test_a_disk_that_fails_or_fills_up_during_a_write_loses_nothing_acknowledged(shim: Path, seed: int) -> None:
    figures = Figures()
    chosen = random.Random(seed).sample(FAULTS, 8)
    fault_round(seed, chosen, shim, figures)
    assert sum(figures.faults.values()) == len(chosen)
