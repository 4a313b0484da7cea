"""Runs several users' mixed work for a long time, with users sleeping and waking, and checks that nothing leaks.

Memories are forgotten after each turn, and the journal retains only its newest part, so anything that still grows is a
leak. Processes and open files are counted while all users are asleep: after the first third, and at the end.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.evaluation import temporary_daemon
from memory_agent.records.memories import MemoryRecord
from memory_agent.settings import DaemonSettings, Settings
from ops.bench.texts import events, passages, queries
from ops.soak.slope import slope_of
from ops.soak.watch import Watch
from relay import JournalSettings, Publisher, relay_endpoints
from relay.config import BrokerSettings, BusSettings

_SETTINGS = Settings(
    daemon=DaemonSettings(dedicated_hosts=2, shared_hosts=2, idle_sleep_s=5.0, upkeep_interval_s=1.0),
    relay=BusSettings(
        journal=JournalSettings(retention_bytes=1 << 20, repeat_horizon_s=60.0),
        broker=BrokerSettings(upkeep_interval_s=5.0),
    ),
)
_USERS = [f"soak-{number}" for number in range(6)]
_AT_ONCE = 3
_EVENTS = 60  # per user and turn
_QUESTIONS = 20
_WAIT_S = 120.0
_SAMPLE_S = 2.0
_TURNS_BETWEEN_SLEEPS = 5
_FEW_FILES = 8  # tolerated, since sockets between Ray's processes come and go

Census = dict[str, dict[str, int]]


def soak(minutes: float, picture: Path | None) -> dict[str, Any]:
    """Run the test; return each part's growth, and the processes and files left behind."""
    with temporary_daemon(_SETTINGS) as data_dir:
        with MemoryClient(data_dir=data_dir) as client:
            pid = next(part.pid for part in client.status().parts if part.name == "daemon")
        assert pid is not None
        with Watch(pid, _SAMPLE_S) as watch:
            turns = _work(data_dir, minutes * 60 / 3)
            first = _while_asleep(data_dir, watch)
            turns += _work(data_dir, minutes * 60 * 2 / 3, turns)
            last = _while_asleep(data_dir, watch)
    if picture is not None:
        _draw(watch, picture)
    growth = _growth(watch)
    left = watch.left_over() | {"sockets": [path.name for path in data_dir.glob("run/*.sock")]}
    return {
        "minutes": minutes,
        "turns": turns,
        "growth_mb_per_h": growth,
        "hosts_started": len(watch.started["host"]),
        "asleep_after_a_third": first,
        "asleep_at_the_end": last,
        "left_over": left,
        "verdict": verdict(growth, first, last, left),
    }


def verdict(
    growth: dict[str, dict[str, float]], first: Census, last: Census, left: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Return the failed checks, by kind; all are empty on success.

    `grew` names parts that grew significantly and by more than 2 % per hour, `more` names parts with more processes or
    open files at the end than after the first third, and `left` names processes and files left behind.
    """
    grew = [part for part, one in growth.items() if one["low"] > 0 and one["slope"] > one["mean_mb"] / 50]
    more = [
        f"{part}: {first.get(part, {}).get(kind, 0)} -> {number} {kind}"
        for part, counts in last.items()
        for kind, number in counts.items()
        if number > first.get(part, {}).get(kind, 0) + (_FEW_FILES if kind == "open_files" else 0)
    ]
    return {"grew": grew, "more": more, "left": [name for names in left.values() for name in names]}


def _work(data_dir: Path, seconds: float, before: int = 0) -> int:
    """Let a few users at a time work for `seconds`; return the number of completed turns."""
    until_s, turns = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        number = before + turns
        users = random.Random(number).sample(_USERS, _AT_ONCE)
        with Publisher(relay_endpoints(data_dir).ingest) as publisher:
            for user in users:
                for event in events(passages(_EVENTS, seed=number), user, f"turn-{number}"):
                    publisher.publish(event)
            through = publisher.flush().acked_through
        for user in users:
            _use(data_dir, user, through[user], number)
        turns += 1
        if turns % _TURNS_BETWEEN_SLEEPS == 0:
            _until_asleep(data_dir)
    return turns


def _use(data_dir: Path, user: str, through: int, number: int) -> None:
    with MemoryClient(user, data_dir=data_dir) as client:
        kept = _remembered(client, f"Turn {number} is done by {user}")
        for query in queries(_QUESTIONS, seed=number):
            client.recall(query)
        client.wait({user: through}, _WAIT_S)
        client.forget([kept.id])
        for session in range(_EVENTS // 30 + 1):
            client.forget_session(f"turn-{number}-{session}")


def _remembered(client: MemoryClient, text: str) -> MemoryRecord:
    """Wake the user by storing a memory. Retry while the process starts, which may take long on a busy machine."""
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        try:
            return client.remember(text)
        except MemoryAgentError as error:
            if time.monotonic() > deadline_s:
                raise
            print(f"not awake yet: {error.code}", file=sys.stderr)
            time.sleep(1.0)


def _while_asleep(data_dir: Path, watch: Watch) -> Census:
    _until_asleep(data_dir)
    return watch.census()


def _until_asleep(data_dir: Path) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    with MemoryClient(data_dir=data_dir) as client:
        while client.status().active_users:
            assert time.monotonic() < deadline_s, "the users did not fall asleep"
            time.sleep(0.5)


def _growth(watch: Watch) -> dict[str, dict[str, float]]:
    """Return each part's growth after the first third, in MB/h, with its 95 % interval."""
    start = len(watch.times_s) // 3
    scale = 3_600 / 1e6
    grown = {}
    for part, values in sorted(watch.own.items()):
        slope, low, high = slope_of(watch.times_s[start:], values[start:])
        mean_mb = sum(values[start:]) / len(values[start:]) / 1e6
        rounded = {"slope": slope * scale, "low": low * scale, "high": high * scale, "mean_mb": mean_mb}
        grown[part] = {name: round(value, 1) for name, value in rounded.items()}
    return grown


def _draw(watch: Watch, picture: Path) -> None:
    from matplotlib.figure import Figure  # from the extra `plot`

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for part, values in sorted(watch.own.items()):
        axes.plot([time_s / 60 for time_s in watch.times_s], [value / 1e6 for value in values], label=part)
    axes.set(xlabel="minutes", ylabel="own memory of all processes of the part, MB")
    axes.legend(fontsize="small", ncols=3)
    figure.savefig(picture, dpi=120)
