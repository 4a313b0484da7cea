"""Test two owners of the same stores at once, and an outage of the relay under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from .world import World, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_two_hosts_that_compete_for_the_same_users_duplicate_and_lose_nothing(short_folder: Path) -> None:
    with World(short_folder, pace_s=0.02) as world:
        world.start()
        wait_until(lambda: world.taken > 50, "the first owner works")
        world.start(world.rival)
        taken = world.taken
        wait_until(lambda: "superseded" in world.owner.log(whole=True) + world.rival.log(whole=True), "one is fenced")
        wait_until(lambda: world.taken > taken + 60, "both go on")
        assert world.owner.is_alive
        assert world.rival.is_alive
        world.finish()
        assert world.findings() == []


def test_events_published_while_the_relay_is_away_wait_in_the_spool_and_arrive_in_order(short_folder: Path) -> None:
    with World(short_folder, pace_s=0.01) as world:
        world.start()
        wait_until(lambda: world.acked > 50, "the relay works")
        (world.notes / "unbounded").touch()
        world.relay.kill()
        before = world.acked_by(world.spooling)
        wait_until(lambda: world.acked_by(world.spooling) >= before + 100, "100 more events are in the spool")
        plain = world.acked_by(world.plain)
        wait_until(lambda: world.acked_by(world.spooling) >= before + 150, "and more")
        assert world.acked_by(world.plain) == plain, "without a spool nothing is promised while the relay is down"
        world.relay.start()
        world.finish()
        assert world.findings() == []
