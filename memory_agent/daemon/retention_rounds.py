"""Retention for sleeping users: those with something due are woken one at a time, and put back to sleep.

A small file in the user's folder says when something is due. Awake users age with their host's upkeep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from memory_agent.daemon.erasure import DaemonEraser
from memory_agent.daemon.hosts import Hosts
from memory_agent.erasure.retention import RetentionRules, is_due_while_closed
from memory_agent.errors import MemoryAgentError
from memory_agent.settings import RetentionSettings
from memory_agent.signals.table import SignalTable
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.verbs.params import NoParams
from memory_agent.verbs.protocol import decode_reply, encode
from relay import SHARED_USER
from relay.log import log

_ROUND_S = 600.0
_DEADLINE_MS = 600_000.0


class RetentionRounds:
    """Visits the users of one daemon. Lives in one event loop."""

    def __init__(
        self, hosts: Hosts, eraser: DaemonEraser, data_dir: Path, settings: RetentionSettings, table: SignalTable
    ) -> None:
        """Raises `SettingsError` for unusable rules."""
        self._hosts = hosts
        self._eraser = eraser
        self._data_dir = data_dir
        self._interval_s = settings.interval_s
        self._rules = RetentionRules(settings, table)

    async def run(self) -> None:
        """Visit users in rounds until cancelled; return at once without a rule."""
        while not self._rules.is_off:
            await self.go_round(datetime.now(UTC))
            await asyncio.sleep(min(_ROUND_S, self._interval_s))

    async def go_round(self, now: datetime) -> None:
        """Wake each sleeping user who has expired memories, one at a time."""
        for user_id in await asyncio.to_thread(self._due, now, self._hosts.awake()):
            if user_id in self._hosts.awake():
                continue  # woken meanwhile
            try:
                await self._visit(user_id)
            except MemoryAgentError as error:
                log.warning("memory.not_aged", user_id=user_id, code=error.code)
            await self._hosts.sleep(user_id)

    async def _visit(self, user_id: str) -> None:
        is_begun = True
        while is_begun:
            reply = await self._hosts.call(user_id, "age", encode(NoParams()), _DEADLINE_MS)
            is_begun = decode_reply(reply, int) > 0
            await self._eraser.finish((user_id,))

    def _due(self, now: datetime, awake: Collection[str]) -> list[str]:
        ageless = (*awake, SHARED_USER)  # no rule is about what users share
        asleep = (user_id for user_id in known_users(self._data_dir) if user_id not in ageless)
        return [
            user_id
            for user_id in asleep
            if is_due_while_closed(user_folder(self._data_dir, user_id), self._rules, self._interval_s, now)
        ]
