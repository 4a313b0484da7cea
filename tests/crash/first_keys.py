"""Kills and faults while a folder's keys, one for the system and one for each user, are created.

The victim is the relay, because it creates the keys. After a kill, the key is complete or absent, and nothing was
encrypted with a lost key. The next process continues and can read everything that was acknowledged.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from typing import NamedTuple

from relay.crypto import KeyRing

from .events import USERS
from .world import World, wait_until

CALLS = 3  # disk calls per key: a write, a flush of the file, a flush of the folder
KEYS_IN_ALL = len(USERS) + 1
FATAL = ("kill", "tear")
WHILE_KILLED = (*FATAL, *FATAL, *FATAL)
WHILE_FAILING = ("eio", "kill", "enospc", "kill", "short", "kill", "eio", "kill", "enospc")


class Met(NamedTuple):
    """How often the relay was killed while creating a key, and which faults it encountered."""

    kills: int
    faults: tuple[str, ...]


def make_keys_under_faults(world: World, seeded: random.Random, kinds: Sequence[str]) -> Met:
    """Start a new, encrypted world; the relay has faults until every key exists. Leaves the world running.

    `kinds` are injected in order. `kill` and `tear` end the relay. Any other kind may prevent the relay from starting,
    but must not end a running relay.
    """
    world.start(world.plain, world.spooling)
    kills, faults = 0, []
    for kind in kinds:
        made = _count(world)
        if made == KEYS_IN_ALL:
            break
        is_fatal = kind in FATAL
        calls = "any" if kind == "kill" else "sync" if kind == "eio" else "write"
        world.relay.order.give(kind, calls, world.keys_in_names, seeded.randint(1, CALLS + 1) if kind == "kill" else 1)
        goes_on = made > 0 and not is_fatal
        world.relay.start(is_waited_for=goes_on)
        wait_until(lambda: not world.relay.is_alive or _count(world) == KEYS_IN_ALL, f"the keys are created, or {kind}")
        is_met = world.relay.order.hits > 0
        if is_fatal and is_met:
            assert world.relay.wait() == -signal.SIGKILL, world.relay.log()
            kills += 1
        elif is_met:
            assert world.relay.is_alive or not goes_on, f"the relay ended by {kind}:\n{world.relay.log()}"
            faults.append(f"{kind} on {calls}")
        world.relay.kill()
        world.relay.order.revoke()
    world.start(world.relay, world.owner)
    wait_until(lambda: _count(world) == KEYS_IN_ALL, "everybody has a key")
    return Met(kills, tuple(faults))


def _count(world: World) -> int:
    return len(KeyRing(world.keys).users())
