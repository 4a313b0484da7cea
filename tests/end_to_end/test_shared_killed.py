"""Test shared items while a real daemon and its parts are killed at arbitrary times."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from memory_agent import MemoryClient
from memory_agent.erasure.logs import fingerprint
from memory_agent.errors import MemoryAgentError
from memory_agent.records.shared import SharedChange
from memory_agent.storage.folders import user_folder
from relay import SHARED_USER, JournalEntry, RelayError, Subscriber, relay_endpoints

from .conftest import ONE_HOST, DaemonProcess
from .test_killed import kill_part, wait_until
from .test_shared_knowledge import client_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Answer = TypeVar("Answer")

USERS = ("ann", "ben", "cas")
VICTIMS = ("daemon", "relay", SHARED_USER, "daemon")
AT_LEAST = 15  # acknowledged publishes between two kills
LONGEST_S = 0.5  # maximum time from the last of these publishes to the kill


class Sharing:
    """Users who publish, unpublish and rate until they are stopped, and a record of the acknowledged changes."""

    def __init__(self, daemon: DaemonProcess, seeded: random.Random) -> None:
        self.words: dict[str, str] = {}
        """A unique word of each item that a user tried to publish, by item id."""
        self.acknowledged: dict[str, str] = {}
        """The author of each acknowledged item, by item id."""
        self.taken: set[str] = set()  # items unpublished, acknowledged or not
        self.gone: set[str] = set()
        self._daemon = daemon
        self._seeded = seeded

    def until(self, is_enough: Callable[[], bool], kill: Callable[[], object]) -> None:
        """Run all users until `is_enough()` becomes true and for a random time after that; then call `kill`."""
        stopping = threading.Event()
        threads = [threading.Thread(target=self._work, args=(user_id, stopping)) for user_id in USERS]
        for thread in threads:
            thread.start()
        try:
            wait_until(is_enough)
            time.sleep(self._seeded.uniform(0, LONGEST_S))
            kill()
        finally:
            stopping.set()
            for thread in threads:
                thread.join()

    def _work(self, user_id: str, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                with client_of(self._daemon, user_id) as client:
                    while not stopping.is_set():
                        self._do_one_thing(user_id, client)
            except (MemoryAgentError, RelayError):
                stopping.wait(0.1)

    def _do_one_thing(self, user_id: str, client: MemoryClient) -> None:
        here = [(item_id, author) for item_id, author in list(self.acknowledged.items()) if item_id not in self.taken]
        own = [item_id for item_id, author in here if author == user_id]
        chance = self._seeded.random()
        if chance < 0.6 or not own:
            word = f"zq{self._seeded.getrandbits(40):010x}"
            preview = client.shared.preview(f"Title {word}", f"{word} needs the VPN")
            self.words[preview.content.item_id] = word
            client.shared.confirm(preview)
            self.acknowledged[preview.content.item_id] = user_id
        elif chance < 0.8:
            item_id = self._seeded.choice(own)
            self.taken.add(item_id)
            client.shared.unpublish(item_id)
            self.gone.add(item_id)
        elif others := [item_id for item_id, author in here if author != user_id]:
            client.shared.rate(self._seeded.choice(others), chance)

    def held(self) -> set[str]:
        """Check that exactly the acknowledged items are published; return the items."""
        found: set[str] = set()
        for user_id in USERS:
            with client_of(self._daemon, user_id) as client:
                found |= {item.id for item in patiently(client.shared.published)}
        assert self.acknowledged.keys() - self.taken <= found
        assert not found & self.gone
        assert found <= self.words.keys()
        return found


def told(daemon: DaemonProcess) -> Counter[tuple[str, str]]:
    """Count the events in the journal by kind and item."""
    entries: list[JournalEntry] = []
    with Subscriber(*relay_endpoints(daemon.data_dir)) as subscriber:
        while page := subscriber.fetch(entries[-1].seq if entries else 0, 500, user_id=SHARED_USER).entries:
            entries += page
    changes = filter(None, map(SharedChange.in_entry, entries))
    return Counter((change.kind, change.item) for change in changes if change.kind != "rated")


def bytes_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_shared_items_survive_kills_are_published_once_and_erased_completely(
    own_full_daemon: DaemonProcess,
) -> None:
    own_full_daemon.configure("embedder.folder=none", "daemon.upkeep_interval_s=1", *ONE_HOST)
    own_full_daemon.start()
    sharing = Sharing(own_full_daemon, random.Random(7))
    for number, victim in enumerate(VICTIMS, 1):
        aim = len(sharing.acknowledged) + AT_LEAST
        sharing.until(
            lambda aim=aim: len(sharing.acknowledged) >= aim, lambda victim=victim: kill(own_full_daemon, victim)
        )
        if victim == "daemon":
            own_full_daemon.light = number == len(VICTIMS)  # the last daemon starts on the same folder without Ray
            own_full_daemon.start()
        sharing.held()
    with client_of(own_full_daemon, "cas") as client:
        mine = {item.id for item in patiently(client.shared.published)}
        patiently(client.erasure.erase_user)
        sharing.taken |= mine
        sharing.gone |= mine
    held = sharing.held()

    def is_told_once() -> bool:
        found = told(own_full_daemon)
        came, went = ({item for kind, item in found if kind == one} for one in ("published", "unpublished"))
        acknowledged = {fingerprint(SHARED_USER, one) for one in sharing.acknowledged}
        is_complete = came == {fingerprint(SHARED_USER, one) for one in held} and acknowledged - came <= went
        return is_complete and not came & went and set(found.values()) == {1}

    wait_until(is_told_once)

    def left() -> list[str]:
        journal = bytes_below(own_full_daemon.data_dir / "journal")
        stored = journal + bytes_below(user_folder(own_full_daemon.data_dir, SHARED_USER))
        return [one for one in sharing.gone if one.encode() in stored or sharing.words[one].encode() in stored]

    wait_until(lambda: not left())
    assert own_full_daemon.stop() == 0
    assert not left()


def kill(daemon: DaemonProcess, victim: str) -> None:
    if victim == "daemon":
        daemon.kill()
    else:
        kill_part(daemon, victim)


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Repeat a request until the killed parts have restarted; return the answer."""
    deadline_s = time.monotonic() + 120
    while True:
        try:
            return ask()
        except (MemoryAgentError, RelayError):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
