"""Answers one hook: publishes its input as events and, for a prompt, returns relevant memories.

A hook never stops the client: without a daemon, with invalid input, or after the deadline, the answer is empty and the
exit code is 0. The events are then stored for the next hook (`waiting`), and a missing daemon is started for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from memory_agent.doors.exchange import Door, Exchange, local_door
from memory_agent.doors.starting import restart_daemon
from memory_agent.hooks.deadline import USUAL_MS, Deadline
from memory_agent.hooks.inputs import NOTHING, Content, Input
from memory_agent.hooks.waiting import MOST_AT_ONCE, Batch, Waiting
from memory_agent.layout import TOKEN_VARIABLE, Layout, default_data_dir
from memory_agent.records.prompt_block import shortened_block
from memory_agent.sessions.entries import CLAUDE_CODE, GEMINI, Session
from memory_agent.sessions.events import channel_of, event_of

MOST_CHARS = 9_000
"""Maximum length of a block. Claude Code replaces 10,000 characters with a preview, and a pipe can buffer this many in
any script.
"""
_MOST_INPUT_BYTES = 32 << 20
"""Maximum input size, so that endless input cannot exhaust memory. Images that a tool reads take several megabytes."""
_PROMPT_TOKENS, _START_TOKENS = 1_000, 400
_MOST_QUERY_CHARS = 8_000
_RECENTLY = "the last two weeks"
"""The query at the start of a session. A query that names only a time returns the memories from that time."""
_RUNS = 2
_ON_THE_WAY_MS = 20.0
_STORED = 200
_REFUSED_FOR_GOOD = frozenset({400, 413, 415, 422})
_PROJECT_VARIABLES = {CLAUDE_CODE: "CLAUDE_PROJECT_DIR", GEMINI: "GEMINI_PROJECT_DIR"}
"""Variables that contain the folder in which the session started. The working folder may have changed since."""

Json = dict[str, Any]


class Options(NamedTuple):
    """The command-line options. `channel` overrides the project folder's channel. `start`: start a missing daemon."""

    client: str
    data_dir: Path | None = None
    channel: str | None = None
    user: str | None = None
    url: str | None = None
    deadline_ms: int = USUAL_MS
    start: bool = True


def answer(options: Options, source: IO[bytes], out: int, deadline: Deadline) -> None:
    """Answer one hook: read its input from `source`, and write the answer to the file descriptor `out`."""
    report = _read(options.client, source)
    if report is not None and (content := report.content()) is not NOTHING:
        _Hook(options, report, deadline).answer(content, out)


def _read(client: str, source: IO[bytes]) -> Input | None:
    try:
        data = source.read(_MOST_INPUT_BYTES + 1)
        fields = json.loads(data) if len(data) <= _MOST_INPUT_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return Input(client, fields) if isinstance(fields, dict) else None


class _Hook:
    """One hook call, which publishes events, recalls memories, or does both."""

    def __init__(self, options: Options, report: Input, deadline: Deadline) -> None:
        self._options = options
        self._report = report
        self._deadline = deadline
        self._layout = Layout(options.data_dir or default_data_dir())
        self._token = os.environ.get(TOKEN_VARIABLE) or None
        self._waiting = Waiting(self._layout.hooks, receiver_of(options.url, self._token))
        self._session = Session(client=report.client, id=report.session, folder=_folder(report))

    def answer(self, content: Content, out: int) -> None:
        events = self._events(content)
        own = self._keep([_encoded(event) for event in events])
        door = self._door()
        if door is None:
            if self._options.start and self._options.url is None:
                restart_daemon(self._layout)
            return
        recall = self._recall(door, content, events)
        publishing, batch = self._publish(door, own)
        if recall is not None:
            self._show(_block(recall), out)
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

    def _events(self, content: Content) -> list[Json]:
        found = (
            event_of(entry, self._session, self._options.user, 0, self._report.at, "session")
            for entry in content.entries
        )
        events = [event for event in found if event is not None]
        if content.ended is not None:
            events.append(self._session_end(content.ended))
        if self._options.channel is not None:
            events = [{**event, "channel_id": self._options.channel} for event in events]
        return events

    def _session_end(self, reason: str) -> Json:
        """Return the event for the end of the session, which creates no memory but reaches followers of the journal."""
        event = {
            "event_type": "session.ended",
            "timestamp": self._report.at.isoformat(),
            "session_id": self._session.id,
            "actor_id": self._report.client,
            "channel_id": self._channel,
            "payload": {"client": self._report.client, "reason": reason},
        }
        return event if self._options.user is None else {**event, "user_id": self._options.user}

    @property
    def _channel(self) -> str:
        return self._options.channel or channel_of(self._session.folder or "")

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

    def _recall(self, door: Door, content: Content, events: list[Json]) -> Exchange | None:
        """Send the recall without waiting for the response; return None if there is no query or it cannot be sent."""
        if not content.prompt and not content.starts:
            return None
        asked: Json = {
            "query": content.prompt[:_MOST_QUERY_CHARS] or _RECENTLY,
            "context_tokens": _PROMPT_TOKENS if content.prompt else _START_TOKENS,
            "filter": {"in_channel" if content.prompt else "channel_id": self._channel},
            "deadline_ms": max(self._deadline.left_s * 1000 - _ON_THE_WAY_MS, 1.0),
        }
        if content.prompt:
            asked |= {"profile": "before_planning", "runs": _RUNS}
        if self._session.id:
            asked["by_session"] = self._session.id
        if events:
            asked["by_event"] = events[0]["event_id"]
        if self._options.user is not None:
            asked["user_id"] = self._options.user
        return self._sent(door, "/v1/recall", _encoded(asked))

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

    def _show(self, block: str, out: int) -> None:
        if not block:
            return
        shown = {"hookEventName": self._report.name, "additionalContext": block}
        with self._deadline.whole(), suppress(OSError):  # the client would show a partial answer as text, or has exited
            os.write(out, _encoded({"hookSpecificOutput": shown}) + b"\n")


def receiver_of(url: str | None, token: str | None) -> str:
    """Return an id of the daemon and key that events are stored for, because the key determines their user; return ""
    for the data folder's own.

    The id of a key of this data folder begins its SHA-256, by which an erasure finds its user (`erasure.hook_events`).
    """
    if url is None and token is None:
        return ""
    from hashlib import sha256  # imported late: 3 ms, rarely needed

    named = token if url is None else f"{url}\n{token or ''}"
    return sha256((named or "").encode(errors="replace")).hexdigest()[:24]


def _folder(report: Input) -> str:
    named = os.environ.get(_PROJECT_VARIABLES.get(report.client, ""))
    with suppress(FileNotFoundError):  # the folder was removed
        return named or report.folder or os.getcwd()
    return ""


def _block(recall: Exchange) -> str:
    """Wait for the response to a recall; return its block, or "" if there is no block or no response."""
    try:
        answer = recall.receive()
        found = json.loads(answer.body) if answer.status == 200 else {}
    except (OSError, ValueError):
        return ""
    block = found.get("context") if isinstance(found, Mapping) else None
    return shortened_block(block, MOST_CHARS) if isinstance(block, str) else ""


def _status(publishing: Exchange) -> int:
    """Wait for the acknowledgements; return the response's status, or 0 if there is none."""
    try:
        return publishing.receive().status
    except OSError:
        return 0


def _encoded(fields: Json) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace")
