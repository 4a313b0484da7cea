"""Rounds of kills and faults: a seeded generator chooses faults for a running system, and then the checker runs.

A fault happens at the N-th disk call (counted by the shim, so deterministic for its process) or after a random number
of promises. The same seed gives the same faults, but what they interrupt depends on the machine.
"""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .figures import ENCRYPTED, Figures
from .first_keys import WHILE_FAILING, WHILE_KILLED, make_keys_under_faults
from .history import check
from .reading import read_history
from .world import Part, World, wait_until

Tell = Callable[[], None]
MOST_CALLS = 30  # a process is killed at one of its next 30 disk calls, which it makes within a few promises
MOST_CALLS_OF = {"columns.arrays": 4, "graph.arrays": 2}  # written rarely, in a few calls
_DISK = {
    "relay": ("journal/data.mdb",),
    "owner": ("records/data.mdb", "records/data.mdb", "columns.arrays", "graph.arrays"),
    "spooling": ("/spool/data.mdb",),
}


class Kill(NamedTuple):
    """A kill of `victim`: `how` is `call` (SIGKILL at a disk call) or `random` (after some promises)."""

    victim: str
    how: str


class Fault(NamedTuple):
    """A fault that is injected into the disk calls of one process, and whether the process may exit because of it."""

    victim: str
    kind: str
    calls: str
    path: str
    may_end: bool


FULL, FAILED = ("enospc", "quota", "brim"), ("eio", "short")
"""Faults after which a process continues, and faults after which it exits, because its memory may be wrong."""
FAULTS = (
    *(Fault("relay", kind, "write", "journal/data.mdb", False) for kind in FULL),
    *(Fault("relay", kind, "write", "journal/data.mdb", True) for kind in FAILED),
    Fault("relay", "eio", "sync", "journal/data.mdb", True),
    Fault("relay", "quota", "sync", "journal/data.mdb", False),
    *(Fault("owner", kind, "write", "records/data.mdb", False) for kind in FULL + FAILED),
    *(Fault("owner", kind, "sync", "records/data.mdb", False) for kind in ("eio", "quota")),
    *(Fault("owner", kind, "write", "columns.arrays", False) for kind in FULL + FAILED),
    *(Fault("owner", kind, "write", "graph.arrays", False) for kind in FULL + FAILED),
    *(Fault("spooling", kind, "write", "/spool/data.mdb", False) for kind in FULL),
    *(Fault("spooling", kind, "write", "/spool/data.mdb", True) for kind in FAILED),
)


def draw_kills(seeded: random.Random, counts: dict[str, int], has_shim: bool) -> list[Kill]:
    """Return `counts` kills per victim, shuffled with `seeded`."""
    drawn = [
        Kill(victim, "call" if has_shim and victim in _DISK and number % 2 else "random")
        for victim, count in counts.items()
        for number in range(count)
    ]
    seeded.shuffle(drawn)
    return drawn


def kill_round(
    seed: int,
    todo: Sequence[Kill],
    shim: Path | None,
    figures: Figures,
    tell: Tell = lambda: None,
    *,
    is_encrypted: bool = False,
) -> None:
    """Run a world, inject every fault, wait for all deliveries, and check it. Raises `AssertionError` with the seed.

    With encryption, the relay is also killed while it creates the keys.
    """
    seeded = random.Random(seed)
    with _world(shim, is_encrypted) as world:
        _start(world, seeded, WHILE_KILLED, figures)
        for kill in todo:
            _strike(world, kill, seeded)
            how = "at the N-th call" if kill.how == "call" else "at random"
            figures.kills[f"{kill.victim}{ENCRYPTED * is_encrypted}, {how}"] += 1
            tell()
        _finish(world, figures, seed)


def fault_round(
    seed: int,
    todo: Sequence[Fault],
    shim: Path,
    figures: Figures,
    tell: Tell = lambda: None,
    *,
    is_encrypted: bool = False,
) -> None:
    """Like `kill_round`, but with disk faults."""
    seeded = random.Random(seed)
    with _world(shim, is_encrypted) as world:
        _start(world, seeded, WHILE_FAILING, figures)
        for fault in todo:
            _inflict(world, fault, seeded)
            figures.faults[f"{fault.path}{ENCRYPTED * is_encrypted}, {fault.kind} on {fault.calls}"] += 1
            tell()
        _finish(world, figures, seed)


@contextmanager
def _world(shim: Path | None, is_encrypted: bool) -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="crash-") as folder,
        World(Path(folder), shim, pace_s=0.04, is_encrypted=is_encrypted) as world,
    ):
        yield world


def _start(world: World, seeded: random.Random, kinds: Sequence[str], figures: Figures) -> None:
    if not world.is_encrypted:
        world.start()
        return
    met = make_keys_under_faults(world, seeded, kinds)
    figures.kills[f"relay{ENCRYPTED}, while it makes a key"] += met.kills
    figures.faults.update(f"the keys{ENCRYPTED}, {fault}" for fault in met.faults)


def _finish(world: World, figures: Figures, seed: int) -> None:
    world.finish()
    history = read_history(world.data_dir, world.notes)
    findings = check(history)
    figures.add(history, findings)
    assert findings == [], f"seed {seed}: {findings[:10]}"
    assert history.deleted, "nothing was forgotten, so forgetting was not tested"


def _strike(world: World, kill: Kill, seeded: random.Random) -> None:
    part: Part = getattr(world, kill.victim)
    if kill.victim == "spooling":
        _strike_spool(world, kill, seeded)
        return
    if kill.how == "call":
        kind, path = seeded.choice(("kill", "tear")), seeded.choice(_DISK[kill.victim])
        part.order.give(
            kind, "any" if kind == "kill" else "write", path, seeded.randint(1, MOST_CALLS_OF.get(path, MOST_CALLS))
        )
        wait_until(lambda: not part.is_alive, f"{part.name} is killed during a call: {kill}")
        assert part.wait() == -signal.SIGKILL, part.log()
        part.order.revoke()
    else:
        _let_work(world, part, seeded.randint(1, 40))
        part.kill()
    part.start()


def _strike_spool(world: World, kill: Kill, seeded: random.Random) -> None:
    """Kill the relay first, so that the spool has events; restart both."""
    part = world.spooling
    (world.notes / "unbounded").touch()
    if kill.how == "call":
        part.order.give("kill", "any", _DISK["spooling"][0], seeded.randint(1, MOST_CALLS))
        world.relay.kill()
        wait_until(lambda: not part.is_alive, f"the spool's owner is killed during a call: {kill}")
        assert part.wait() == -signal.SIGKILL, part.log()
        part.order.revoke()
    else:
        world.relay.kill()
        _let_work(world, part, seeded.randint(1, 40))
        part.kill()
    if seeded.random() < 0.5:  # the restarted publisher cannot reach the relay
        part.start()
        _let_work(world, part, 8)
        world.relay.start()
    else:
        world.relay.start()
        part.start()
    (world.notes / "unbounded").unlink()


def _inflict(world: World, fault: Fault, seeded: random.Random) -> None:
    part: Part = getattr(world, fault.victim)
    first = seeded.randint(1, MOST_CALLS_OF.get(fault.path, 12))
    part.order.give(fault.kind, fault.calls, fault.path, first, seeded.randint(1, 3))
    if fault.victim == "spooling":
        (world.notes / "unbounded").touch()
        world.relay.kill()
    wait_until(lambda: part.order.hits > 0 or not part.is_alive, f"{fault} is met")
    assert part.order.hits > 0, f"{part.name} ended before its disk failed:\n{part.log()}"
    if fault.victim == "spooling":
        world.relay.start()
        (world.notes / "unbounded").unlink()
    _let_work_or_end(world, part)
    part.order.revoke()
    _let_work_or_end(world, part)  # a process may end some time after the fault
    if not part.is_alive:
        assert fault.may_end, f"{part.name} ended by {fault}:\n{part.log()}"
        code = part.wait()
        assert code > 0, f"{part.name} was killed by {fault} (signal {-code}):\n{part.log()}"
        part.start()


def _let_work(world: World, part: Part, promises: int) -> None:
    """Wait until the part has made or passed on this many more promises."""
    count = _counter(world, part)
    aim = count() + promises
    wait_until(lambda: count() >= aim or not part.is_alive, f"{part.name} continues")
    assert part.is_alive, f"{part.name} exited on its own:\n{part.log()}"


def _let_work_or_end(world: World, part: Part) -> None:
    count = _counter(world, part)
    aim = count() + 8
    wait_until(lambda: count() >= aim or not part.is_alive, f"{part.name} continues, or ends")


def _counter(world: World, part: Part) -> Callable[[], int]:
    if part is world.owner:
        return lambda: world.taken
    asked = world.plain if part is world.relay else part  # a spooled event does not show that the relay works
    return lambda: world.acked_by(asked)
