"""The scene in which users are spread over three machines, and one machine dies while they work.

Each machine is a set of processes with its own data folder and its own loopback address.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread

import psutil

from memory_agent import MemoryClient
from memory_agent.evaluation import child_environment, temporary_daemon
from memory_agent.layout import Layout
from memory_agent.settings import ArchiveSettings, ClusterSettings, DaemonSettings, Settings
from ops.demo.screen import Screen
from ops.demo.stage import DEADLINE_MS, PATIENCE_S, wait_until
from relay import Publisher, relay_endpoints

_HOME = "127.0.0.2"
_MACHINES = {"worker-1": "127.0.0.3", "worker-2": "127.0.0.4"}
_USERS = tuple(f"user-{number}" for number in range(1, 7))
_ONE_HOST = DaemonSettings(dedicated_hosts=0, shared_hosts=1)
"""Each machine has one process for all its users, because starting a process takes 0.7 s of processor time."""
_EVENTS = 120
_PACE_S = 0.02
_ENDED_WITHIN_S = 20.0


def lose_a_machine(screen: Screen) -> None:
    """Start a cluster, have users work on all machines, kill one, and check that nothing acknowledged is lost."""
    if sys.platform != "linux":
        screen.say("skipped: several loopback addresses exist only on Linux")
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memory-demo-")))
        settings = Settings(
            daemon=_ONE_HOST,
            cluster=ClusterSettings(listen=_HOME),
            archive=ArchiveSettings(url=f"file://{folder / 'archive'}", interval_s=1.0),
        )
        data_dir = stack.enter_context(temporary_daemon(settings))
        machines = stack.enter_context(_joined(data_dir, folder))
        client = stack.enter_context(MemoryClient(data_dir=data_dir))
        wait_until(lambda: [node.state for node in client.status().nodes] == ["up"] * len(machines))
        for user in _USERS:
            with MemoryClient(user, data_dir=data_dir) as own:
                own.remember(f"{user} knows that staging needs the VPN")
        spread = {node.name: node.users for node in client.status().nodes}
        screen.table([("machine", "awake users"), *((name, str(users)) for name, users in spread.items())])
        screen.promise("users live on each machine that joined", all(spread.values()))
        _kill_one(screen, data_dir, max(spread, key=lambda name: spread[name]), machines)


def _kill_one(screen: Screen, data_dir: Path, victim: str, machines: dict[str, subprocess.Popen[str]]) -> None:
    published: list[str] = []
    emitter = Thread(target=_publish, args=(data_dir, published))
    emitter.start()
    wait_until(lambda: len(published) > _EVENTS // 3)
    in_the_middle = emitter.is_alive()
    killed = _kill(machines[victim])
    killed_s = time.monotonic()
    screen.say(f"$ kill -9 {' '.join(str(process.pid) for process in killed)}", "bold red")
    screen.say(f"{victim} is dead, with {len(killed)} processes; events are still being published")
    answers = {user: _known(data_dir, user) for user in _USERS}
    took_s = time.monotonic() - killed_s
    emitter.join()
    screen.promise(
        f"what each user had stored is found again on the remaining machines, {took_s:.1f} s after the kill",
        all(any("staging needs the VPN" in text for text in texts) for texts in answers.values()),
    )
    with MemoryClient(data_dir=data_dir) as client:
        client.wait({"system": client.status().journal["last_seq"]}, PATIENCE_S)
        is_forgotten = _forgets(client, victim)
    found = Counter(text for user in _USERS for text in _texts(data_dir, user) if text in set(published))
    screen.promise(
        f"all {len(published)} events published meanwhile became memories, each exactly once",
        in_the_middle and len(found) == len(published) and set(found.values()) == {1},
    )
    screen.promise("the daemon no longer lists the dead machine", is_forgotten)


def _forgets(client: MemoryClient, machine: str) -> bool:
    """Wait until the daemon no longer lists a machine; return False if it still does after a minute. Ray may report a
    death after the machine's users were moved.
    """
    with suppress(TimeoutError):
        wait_until(lambda: machine not in [node.name for node in client.status().nodes])
        return True
    return False


def _publish(data_dir: Path, published: list[str]) -> None:
    """Publish events for the users in turn, and append their texts to `published`."""
    with Publisher(relay_endpoints(data_dir).ingest) as publisher:
        for number in range(_EVENTS):
            user = _USERS[number % len(_USERS)]
            text = f"Note {number}: the lamp in room {number} of {user}'s house flickers in the evening"
            publisher.publish({"event_type": "chat.user_msg", "user_id": user, "payload": {"text": text}})
            published.append(text)
            time.sleep(_PACE_S)


@contextmanager
def _joined(data_dir: Path, folder: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start the machines and join them to the daemon; stop them on exit."""
    machines: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, address in _MACHINES.items():
            command = [sys.executable, "-m", "memory_agent", "join", Layout(data_dir).gateway, "--name", name]
            command += ["--listen", address, "--data-dir", str(folder / name)]
            with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
                machines[name] = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=log, text=True, env=child_environment()
                )
        for name, machine in machines.items():
            assert machine.stdout is not None
            if not machine.stdout.readline():
                raise TimeoutError(f"{name} did not join: {(folder / f'{name}.log').read_text()[-500:]}")
        yield machines
    finally:
        for machine in machines.values():
            machine.terminate()
        for machine in machines.values():
            try:
                machine.wait(_ENDED_WITHIN_S)
            except subprocess.TimeoutExpired:
                machine.kill()
                machine.wait()


def _kill(machine: subprocess.Popen[str]) -> Sequence[psutil.Process]:
    own = psutil.Process(machine.pid)
    family = [own, *own.children(recursive=True)]
    for process in family:
        process.kill()
    return family


def _known(data_dir: Path, user: str) -> list[str]:
    with MemoryClient(user, data_dir=data_dir) as client:
        answer = client.recall("what does staging need?", deadline_ms=DEADLINE_MS)
    return [memory.record.text for memory in answer.memories]


def _texts(data_dir: Path, user: str) -> list[str]:
    with MemoryClient(user, data_dir=data_dir) as client:
        return [record.text for record in client.list(limit=_EVENTS).records]
