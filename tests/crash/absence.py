"""Stops the relay for a while under load, and checks that spooled events arrive exactly once and in order."""

from __future__ import annotations

import time
from pathlib import Path

from .figures import Figures
from .history import Finding, check
from .reading import read_history
from .world import World, wait_until


def relay_away(folder: Path, away_s: float, figures: Figures) -> list[Finding]:
    """Kill the relay under load, restart it after `away_s`, wait for all deliveries, and return the violations."""
    with World(folder, pace_s=0.01) as world:
        world.start()
        wait_until(lambda: world.acked > 50, "the relay works")
        (world.notes / "unbounded").touch()
        world.relay.kill()
        spooled, plain = world.acked_by(world.spooling), world.acked_by(world.plain)
        time.sleep(away_s)  # the length of the outage is under test
        assert world.acked_by(world.plain) <= plain + 8, "without a spool nothing is promised while the relay is down"
        figures.totals["events spooled while the relay was down"] += world.acked_by(world.spooling) - spooled
        world.relay.start()
        world.finish()
        history = read_history(world.data_dir, world.notes)
        findings = check(history)
        figures.add(history, findings)
        figures.kills["relay, and away for a minute"] += 1
        return findings
