"""Follows users' events over HTTP, as the page does, even across restarts. Checks that each event arrives exactly once
and in order."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from memory_agent.exchange import local_door
from memory_agent.layout import Layout
from ops.soak.ledger import Finding, foreign, marks_in

_TIMEOUT_S = 60.0  # heartbeats arrive every 15 s
_PAUSE_S = 1.0


class Followed(threading.Thread):
    """One user's events, which a thread reads from a stream until `close` is called."""

    def __init__(self, data_dir: Path, user: str, report: Callable[[list[Finding]], None]) -> None:
        super().__init__(name=f"follows-{user}", daemon=True)
        self._layout = Layout(data_dir)
        self._user = user
        self._report = report
        self._over = threading.Event()
        self._place = ""
        self.times: Counter[str] = Counter()
        """How often each mark was received."""
        self.events = self.connections = self.gaps = 0

    def run(self) -> None:
        """Read the stream, and reconnect whenever it ends."""
        while not self._over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._read()
            self._over.wait(_PAUSE_S)

    def close(self) -> None:
        """Stop reading after the next frame or heartbeat."""
        self._over.set()

    def _read(self) -> None:
        door = local_door(self._layout)
        if door is None:
            return
        connection = http.client.HTTPConnection(door.url.partition("://")[2], timeout=_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {door.token}", "Accept": "text/event-stream"}
        headers |= {"Last-Event-ID": self._place} if self._place else {}
        try:
            connection.request("GET", f"/v1/events?user_id={quote(self._user)}", headers=headers)
            answer = connection.getresponse()
            self.connections += answer.status == http.HTTPStatus.OK
            fields: dict[str, str] = {}
            while not self._over.is_set() and (line := answer.readline()):
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                    continue
                self._take(fields)
                fields = {}
        finally:
            connection.close()

    def _take(self, fields: dict[str, str]) -> None:
        findings = []
        place = fields.get("id", self._place)
        if fields.get("event") == "event":
            self.events += 1
            event = json.loads(fields["data"])["event"]
            if self._place and int(place) <= int(self._place):
                findings.append(Finding("doubled", self._user, f"event {place} delivered after {self._place}"))
            if event["event_type"].partition(".")[0] != "memory":  # blocks repeat the marks of memories
                self.times.update(marks_in(json.dumps(event)))
            findings += foreign(self._user, [fields["data"]], "in the stream")
        self.gaps += fields.get("event") == "gap"
        self._place = place
        if findings:
            self._report(findings)
