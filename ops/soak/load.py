"""The work of a soak's users: a few threads, each with its own users, send a random mix of requests at a steady pace.

Each user's memories and shared items are limited to `MOST`: beyond that, the oldest are forgotten or erased.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

from memory_agent import MemoryClient
from memory_agent.errors import MemoryAgentError
from memory_agent.evaluation import child_environment
from memory_agent.exchange import Exchange, local_door
from memory_agent.layout import Layout
from memory_agent.records.memories import MemoryRecord
from ops.bench.texts import passages, queries
from ops.soak.followed import Followed
from ops.soak.ledger import Finding, Held, Ledger, foreign, marks_in
from relay import Publisher, RelayError, relay_endpoints

MOST = {"m": 40, "i": 3, "runs": 20}
"""The maximum number of memories, shared items and runs of a user. If there are more, the oldest are removed."""
_REMOVED_AT_ONCE = 12
_THREADS = 3
_CALM = 5
"""The number of users who use hooks and whose events are followed. None of their data is erased, so each of their
events must arrive.
"""
_FLUSH_S = 20.0
_DRAIN_S = 120.0
_CLIENT = "claude-code"
_TEXTS = 3_000
_WEIGHTS = {
    "recall": 28,
    "remember": 20,
    "publish": 14,
    "shared_search": 7,
    "http": 8,
    "browse": 6,
    "run": 6,
    "hook": 4,
    "share": 3,
    "rate": 2,
    "status": 2,
    "erase_user": 0.5,
}


class Tally:
    """Records requests by kind: the milliseconds of successful requests, and the error codes of failed requests.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ms: defaultdict[str, list[float]] = defaultdict(list)
        self._errors: Counter[str] = Counter()
        self.findings: list[Finding] = []

    @contextmanager
    def counted(self, kind: str) -> Iterator[None]:
        """Count the block as one request; errors from the daemon are counted and suppressed."""
        began_s = time.monotonic()
        try:
            yield
        except (MemoryAgentError, RelayError, OSError) as error:
            with self._lock:
                self._errors[f"{kind}: {getattr(error, 'code', type(error).__name__)}"] += 1
        else:
            with self._lock:
                self._ms[kind].append(round((time.monotonic() - began_s) * 1000, 1))

    def report(self, findings: list[Finding]) -> None:
        """Add violated guarantees."""
        with self._lock:
            self.findings += findings

    def take(self) -> dict[str, Any]:
        """Return what was counted since the last call."""
        with self._lock:
            taken = {"ms": dict(self._ms), "errors": dict(self._errors), "findings": self.findings}
            self._ms, self._errors, self.findings = defaultdict(list), Counter(), []
        return taken


class User:
    """One user's requests. Each method makes one kind of request and records in the ledger the marks that it writes."""

    def __init__(self, name: str, data_dir: Path, ledger: Ledger, tally: Tally, seed: int) -> None:
        self.name = name
        self.client = MemoryClient(name, data_dir=data_dir)
        self.published: set[str] = set()
        """The marks of acknowledged events since the last `settle`."""
        self._unacked: set[str] = set()
        self._data_dir, self._ledger, self._tally = data_dir, ledger, tally
        self._random = random.Random(f"{name} {seed}")
        self._turn = 0

    def remember(self) -> None:
        mark = self._ledger.send(self.name)
        self.client.remember(self._text(mark), session_id=f"{self.name}-{self._turn}", tags=["soak"])
        self._ledger.keep([mark])

    def publish(self, publisher: Publisher) -> None:
        for _ in range(3):
            mark = self._ledger.send(self.name)
            event = {
                "event_type": "worker.task.finding",
                "user_id": self.name,
                "session_id": f"{self.name}-{self._turn}",
            }
            publisher.publish({**event, "event_id": mark, "payload": {"claim": self._text(mark)}})
            self._unacked.add(mark)
        self.flush(publisher)

    def flush(self, publisher: Publisher) -> None:
        """Wait for the acknowledgement of all events. Raises `RelayUnavailableError` if some acknowledgements are
        late."""
        if not self._unacked:
            return
        report = publisher.flush(_FLUSH_S)
        if report.pending:
            raise TimeoutError
        self._ledger.keep(self._unacked)
        self.published |= self._unacked
        self._unacked.clear()

    def recall(self) -> None:
        found = self.client.recall(self._query(), tiers=self._random.choice([None, ("local", "global")]))
        texts = [one.record.text for one in found.memories if one.shared is None]
        self._tally.report(foreign(self.name, texts, "in a recall"))

    def shared_search(self) -> None:
        self.client.shared.search(self._query())

    def http(self) -> None:
        door = local_door(Layout(self._data_dir))
        if door is None:
            raise ConnectionRefusedError
        asked = {"user_id": self.name, "query": self._query(), "top_k": 5}
        answer = Exchange(door, time.monotonic() + 10.0).send("/v1/recall", json.dumps(asked).encode()).receive()
        if answer.status != 200:
            raise ConnectionError(answer.status)
        self._tally.report(foreign(self.name, [answer.body.decode()], "in a recall over HTTP"))

    def browse(self) -> None:
        self._random.choice([self.client.stats, self.client.sessions, self.client.map, self.client.runs.list])()

    def run(self) -> None:
        mark = self._ledger.send(self.name)
        run = self.client.runs.begin(self._text(mark), session_id=f"{self.name}-run-{time.time_ns()}")
        self._ledger.keep([mark])
        used = [
            one.record.id for one in self.client.recall(self._query(), by_run=run.id).memories if one.shared is None
        ]
        self.client.runs.step(run.id, self._query(), used[:2])
        self.client.runs.end(run.id, quality=self._random.random(), memory_ids=used[:2])

    def hook(self) -> None:
        """Run three hooks of one turn of a coding agent, each in its own process, as the agent does."""
        self._turn += 1
        own = {
            "session_id": f"{self.name}-hook-{time.time_ns()}",
            "cwd": "/home/soak",
            "prompt_id": f"{self.name}-t{self._turn}-{time.time_ns()}",
        }
        marks = [self._ledger.send(self.name) for _ in range(3)]
        said = self._text(marks[0])
        ran = {"tool_name": "Bash", "tool_input": {"command": "make test"}, "tool_use_id": "u1"}
        self._hooked({**own, "hook_event_name": "UserPromptSubmit", "prompt": said})
        self._hooked(
            {**own, **ran, "hook_event_name": "PostToolUse", "tool_response": {"stdout": self._text(marks[1])}}
        )
        self._hooked({**own, "hook_event_name": "Stop", "last_assistant_message": self._text(marks[2])})

    def share(self) -> None:
        mark = self._ledger.send(self.name, "i")
        preview = self.client.shared.preview(mark, self._text(mark), content_type="document", body=self._text(mark))
        self.client.shared.confirm(preview)
        self._ledger.keep([mark])

    def rate(self) -> None:
        found = [one.item.id for one in self.client.shared.search(self._query()) if self.name not in one.item.title]
        if found:
            self.client.shared.rate(found[0], self._random.random())

    def status(self) -> None:
        self._random.choice([self.client.status, self.client.metrics])()

    def erase_user(self) -> None:
        self._ledger.leave(self.name)
        receipt = self.client.erasure.erase_user()
        self._ledger.remove(self.name)
        self._unacked.clear()
        if not receipt.complete:
            raise TimeoutError(receipt.reason)

    def trim(self, *, may_erase: bool) -> None:
        """Remove the oldest memories if there are too many, and the memories whose removal was not acknowledged."""
        self._turn += 1
        held = self._records()
        marks = [mark for record in reversed(held) for mark in marks_in(record.text)]
        chosen = set(list(dict.fromkeys(marks))[:_REMOVED_AT_ONCE])
        ids = [one.id for one in held if chosen.intersection(marks := marks_in(one.text)) or not marks]
        self._ledger.leave(self.name, chosen)
        if may_erase and self._random.random() < 0.4:
            self.client.erasure.erase(ids)
        else:
            self.client.forget(ids)
        self._ledger.remove(self.name, chosen)

    def forget_runs(self) -> None:
        """Forget the sessions of the oldest runs. Each of them contains only the data of its run."""
        runs = self.client.runs.list(limit=1_000)
        sessions = {run.session_id for run in runs[MOST["runs"] :] if run.session_id}
        for session in list(sessions)[:_REMOVED_AT_ONCE]:
            texts = [record.text for record in self._records() if record.session_id == session]
            marks = [mark for text in texts for mark in marks_in(text)]
            self._ledger.leave(self.name, marks)
            self.client.forget_session(session)
            self._ledger.remove(self.name, marks)

    def unshare(self) -> None:
        """Remove the oldest shared item."""
        oldest = min(self.client.shared.published(), key=lambda item: item.title)
        self._ledger.leave(self.name, [oldest.title])
        self.client.shared.unpublish(oldest.id)
        self._ledger.remove(self.name, [oldest.title])

    def compare(self) -> tuple[list[Finding], int]:
        """Compare the store with the ledger; return the findings and the number of memories."""
        held = self._records()
        findings = self._ledger.compare(self.name, "m", [Held(str(one.type), one.text) for one in held])
        items = [Held("item", f"{item.title}") for item in self.client.shared.published()]
        return findings + self._ledger.compare(self.name, "i", items), len(held)

    def _records(self) -> list[MemoryRecord]:
        """Return all memories, newest first."""
        page = self.client.list(limit=1_000)
        assert page.next_cursor is None, "memories are removed too slowly"
        return list(page.records)

    def _hooked(self, said: dict[str, Any]) -> None:
        command = [str(Path(sys.executable).with_name("memory-agent")), "hook", _CLIENT]
        options = ["--data", str(self._data_dir), "--user", self.name]
        done = subprocess.run(
            [*command, *options],
            input=json.dumps(said).encode(),
            stdout=subprocess.PIPE,
            env=child_environment(),
            timeout=30,
        )
        if done.returncode:
            raise ConnectionError(done.returncode)
        self._tally.report(foreign(self.name, [done.stdout.decode()], "in a hook's answer"))

    def _text(self, mark: str) -> str:
        return f"{self._random.choice(_texts())} ({mark})"

    def _query(self) -> str:
        return self._random.choice(_queries())


@cache
def _texts() -> list[str]:
    return passages(_TEXTS, seed=1)


@cache
def _queries() -> list[str]:
    return queries(_TEXTS, seed=2)


class Load:
    """Sends the requests of all users while the context is active, `rate` per second on average."""

    def __init__(self, data_dir: Path, ledger: Ledger, tally: Tally, users: int, rate: float) -> None:
        seed = time.time_ns()
        names = [f"soak-{number:02}" for number in range(users)]
        self._users = [User(name, data_dir, ledger, tally, seed) for name in names]
        self._calm = self._users[:_CALM]
        self._streams = {user.name: Followed(data_dir, user.name, tally.report) for user in self._calm}
        self._publishers = [Publisher(relay_endpoints(data_dir).ingest) for _ in range(_THREADS)]
        self._ledger, self._tally, self._rate = ledger, tally, rate
        self._turns = [threading.Lock() for _ in range(_THREADS)]
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=[part]) for part in range(_THREADS)]

    def __enter__(self) -> Self:
        for thread in (*self._streams.values(), *self._threads):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for stream in self._streams.values():
            stream.close()
        for thread in self._threads:
            thread.join()
        for publisher in self._publishers:
            publisher.close()
        for user in self._users:
            user.client.close()

    @property
    def streamed(self) -> dict[str, int]:
        """Totals of all streams: events, connections and gaps."""
        names = ("events", "connections", "gaps")
        return {name: sum(getattr(stream, name) for stream in self._streams.values()) for name in names}

    def compare(self) -> tuple[list[Finding], int]:
        """Pause the load until everything is ingested; compare all stores and streams with the ledger.

        Returns the findings and the number of memories. Raises `MemoryAgentError` or `RelayError` if the stores
        cannot be compared.
        """
        with ExitStack() as paused:
            for turn in self._turns:
                paused.enter_context(turn)
            for part, publisher in enumerate(self._publishers):
                for user in self._users[part::_THREADS]:
                    user.flush(publisher)
            client = self._users[0].client
            last_seq = client.status().journal["last_seq"]
            client.wait({user.name: last_seq for user in self._users}, _DRAIN_S)
            compared = [user.compare() for user in self._users]
            findings = [finding for found, _ in compared for finding in found]
            return findings + self._streams_compared(), sum(count for _, count in compared)

    def _streams_compared(self) -> list[Finding]:
        until_s = time.monotonic() + _FLUSH_S
        findings = []
        for user in self._calm:
            times = self._streams[user.name].times
            while not user.published <= times.keys() and time.monotonic() < until_s:
                time.sleep(0.2)
            for mark in user.published:
                if times[mark] != 1:
                    kind = "doubled" if times[mark] else "lost"
                    findings.append(Finding(kind, user.name, f"{mark} occurs {times[mark]} times in the stream"))
            user.published.clear()
            times.clear()
        return findings

    def _work(self, part: int) -> None:
        own, publisher = self._users[part::_THREADS], self._publishers[part]
        chance = random.Random(time.time_ns() + part)
        while not self._over.wait(min(chance.expovariate(self._rate / _THREADS), 10.0)):
            with self._turns[part]:
                self._one(chance.choice(own), publisher, chance)

    def _one(self, user: User, publisher: Publisher, chance: random.Random) -> None:
        (kind,) = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        is_calm = user in self._calm
        if kind == "erase_user" and is_calm:
            kind = "recall"
        elif kind == "hook" and not is_calm:
            user = chance.choice(
                [one for one in self._users[self._users.index(user) % _THREADS :: _THREADS] if one in self._calm]
            )
        with self._tally.counted(kind):
            if kind == "publish":
                user.publish(publisher)
            else:
                getattr(user, kind)()
        if len(self._ledger.of(user.name, "m")) > MOST["m"]:
            with self._tally.counted("trim"):
                user.trim(may_erase=not is_calm)
            with self._tally.counted("forget_runs"):
                user.forget_runs()
        if len(self._ledger.of(user.name, "i")) > MOST["i"]:
            with self._tally.counted("unshare"):
                user.unshare()
