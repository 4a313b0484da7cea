"""Answers one hook: publishes its input as events and, for a prompt, returns relevant memories.

A hook never stops the client: without a daemon, with invalid input, or after the deadline, the answer is empty and the
exit code is 0. The events are then stored for the next hook (`waiting`), and a daemon is started if none is running.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from memory_agent.exchange import Door, Exchange, local_door
from memory_agent.hooks.current_sessions import CurrentSessions
from memory_agent.hooks.deadline import USUAL_MS, Deadline
from memory_agent.hooks.report import MOST_INPUT_BYTES, Json, Origin, Report, encoded, read_report
from memory_agent.hooks.waiting import MOST_AT_ONCE, Batch, Waiting
from memory_agent.layout import TOKEN_VARIABLE, Layout, default_data_dir
from memory_agent.sessions.entries import CLAUDE_CODE, GEMINI
from memory_agent.starting import restart_daemon

_ON_THE_WAY_MS = 20.0
_STORED = 200
_REFUSED_FOR_GOOD = frozenset({400, 413, 415, 422})
_PROJECT_VARIABLES = {CLAUDE_CODE: "CLAUDE_PROJECT_DIR", GEMINI: "GEMINI_PROJECT_DIR"}
"""Variables that contain the folder in which the session started. The working directory may have changed since then."""


class Options(NamedTuple):
    """The command-line options. `channel` overrides the project folder's channel. `start`: start a daemon if none is
    running.
    """

    client: str
    data_dir: Path | None = None
    channel: str | None = None
    user: str | None = None
    url: str | None = None
    deadline_ms: int = USUAL_MS
    start: bool = True


def answer(options: Options, source: IO[bytes], out: int, deadline: Deadline) -> None:
    """Answer one hook: read its input from `source`, and write the answer to the file descriptor `out`."""
    with suppress(OSError):
        data = source.read(MOST_INPUT_BYTES + 1)
        report = read_report(data, _origin(options))
        if report is not None:
            _Hook(options, deadline).answer(report, out)


class _Hook:
    def __init__(self, options: Options, deadline: Deadline) -> None:
        self._options = options
        self._deadline = deadline
        self._layout = Layout(options.data_dir or default_data_dir())
        self._token = os.environ.get(TOKEN_VARIABLE) or None
        self._waiting = Waiting(self._layout.hooks, receiver_of(options.url, self._token))

    def answer(self, report: Report, out: int) -> None:
        CurrentSessions(self._layout.agents).set(os.getppid(), report.session)
        events = report.events()
        own = self._keep([encoded(event) for event in events])
        door = self._door()
        if door is None:
            if self._options.start and self._options.url is None:
                restart_daemon(self._layout)
            return
        recall = self._recall(door, report, events)
        publishing, batch = self._publish(door, own)
        if recall is not None:
            self._show(report.answer(_block(recall)), out)
        most = MOST_AT_ONCE
        while publishing is not None:
            status = _status(publishing)
            if status in _REFUSED_FOR_GOOD and len(batch.files) > 1:
                most = 1  # one of the files is invalid: send each separately
            elif status == _STORED or status in _REFUSED_FOR_GOOD:
                batch.forget()
                if batch.is_last:
                    break
            else:
                break
            publishing, batch = self._publish(door, own, most)
        self._waiting.close()

    def _keep(self, events: list[bytes]) -> Batch:
        if not events or self._layout.is_encrypted:
            return Batch(tuple(events))
        try:
            return self._waiting.keep(events)
        except OSError:
            return Batch(tuple(events))

    def _door(self) -> Door | None:
        if self._options.url is not None:
            return Door(self._options.url, self._token or "")
        try:
            return local_door(self._layout, self._token)
        except OSError:
            return None

    def _recall(self, door: Door, report: Report, events: list[Json]) -> Exchange | None:
        """Send the recall without waiting for the response."""
        asked = report.recall(events, max(self._deadline.left_s * 1000 - _ON_THE_WAY_MS, 1.0))
        if asked is None:
            return None
        if self._options.user is not None:
            asked["user_id"] = self._options.user
        return self._sent(door, "/v1/recall", encoded(asked))

    def _publish(self, door: Door, own: Batch, most: int = MOST_AT_ONCE) -> tuple[Exchange | None, Batch]:
        """Send the waiting events, then the new ones, without waiting for acknowledgements."""
        batch = self._waiting.batch(own, most)
        if not batch.events:
            return None, batch
        return self._sent(door, "/v1/events", b'{"events":[%s]}' % b",".join(batch.events)), batch

    def _sent(self, door: Door, path: str, body: bytes) -> Exchange | None:
        try:
            return Exchange(door, self._deadline.until_s).send(path, body)
        except OSError:
            return None

    def _show(self, line: bytes, out: int) -> None:
        if line:
            # The client would show a partial answer as text. An error means that the client has exited.
            with self._deadline.whole(), suppress(OSError):
                os.write(out, line)


def receiver_of(url: str | None, token: str | None) -> str:
    """Return an id for the daemon to which stored events will be sent and the key to use, or "" for the data folder's
    own daemon and key.

    The id is a prefix of the key's SHA-256; an erasure uses it to find the user of the events (`erasure.hook_events`).
    """
    if url is None and token is None:
        return ""
    from hashlib import sha256  # imported late: 3 ms, rarely needed

    named = token if url is None else f"{url}\n{token or ''}"
    return sha256((named or "").encode(errors="replace")).hexdigest()[:24]


def _origin(options: Options) -> Origin:
    project = os.environ.get(_PROJECT_VARIABLES.get(options.client, ""), "")
    working = ""
    with suppress(FileNotFoundError):  # the folder was removed
        working = os.getcwd()
    return Origin(options.client, project, working, options.channel, options.user)


def _block(recall: Exchange) -> str:
    try:
        answer = recall.receive()
        found = json.loads(answer.body) if answer.status == 200 else {}
    except (OSError, ValueError):
        return ""
    block = found.get("context") if isinstance(found, Mapping) else None
    return block if isinstance(block, str) else ""


def _status(publishing: Exchange) -> int:
    try:
        return publishing.receive().status
    except OSError:
        return 0
