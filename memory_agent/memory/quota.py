"""Limits the number of a user's memories by tier: rejects new memories, or forgets the oldest unused memories.

Learned, imported and restored memories are never rejected, but count towards the quota.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np

from memory_agent.erasure.forgetting import Forgetting
from memory_agent.errors import QuotaExceededError
from memory_agent.settings import QuotaSettings
from memory_agent.storage.archive import Archive
from memory_agent.storage.batch import Batch

OVER_QUOTA = "over_quota"
"""In the statistics, the number of events dropped and memories forgotten because of a quota."""
_FORGOTTEN_SHARE = 100
"""At least a hundredth of the quota is forgotten at a time, because the learner is retrained each time."""


class MemoryQuota:
    """The quota of one user. A user without a tier has no quota."""

    def __init__(self, user_id: str, archive: Archive, settings: QuotaSettings, forgetting: Forgetting) -> None:
        self._user_id = user_id
        self._archive = archive
        self._forgetting = forgetting
        self._tier = settings.users.get(user_id, settings.default)
        self._limit = settings.tiers.get(self._tier)
        self._refuses = settings.when_full == "refuse"

    def is_full(self, batch: Batch) -> bool:
        return self._limit is not None and self._refuses and batch.counts().memories >= self._limit

    def check(self, batch: Batch) -> None:
        if self.is_full(batch):
            assert self._limit is not None
            raise QuotaExceededError(self._user_id, self._limit, self._tier)

    def make_room(self, first_new: int) -> None:
        """Forget memories that exceed the quota if `when_full` is `forget`, except those in rows from `first_new` on.

        Durable on return.
        """
        if self._limit is None or self._refuses:
            return
        excess = self._archive.store.counts().memories - self._limit
        if excess > 0:
            ids = _least_used(self._archive, first_new, max(excess, self._limit // _FORGOTTEN_SHARE))
            self._forgetting.expired({OVER_QUOTA: ids})


def _least_used(archive: Archive, first_new: int, limit: int) -> list[str]:
    """Return the ids of the first `limit` stored memories that no run used and no recall returned.

    If there are fewer than `limit`, the other memories follow, least recently recalled first. Patterns count as
    recalled, because a forgotten pattern would never form again.
    """
    view, unused, used = archive.settled_view(), list[str](), list[tuple[datetime, str]]()
    rows = np.sort(view.rows[view.alive])
    for row in rows[rows < first_new].tolist():
        record = archive.store.record(row)
        if record is None:
            continue
        if record.times_recalled or record.utility.used or record.kind == "pattern":
            used.append((record.last_recalled_at or record.timestamp, record.id))
            continue
        unused.append(record.id)
        if len(unused) == limit:
            return unused
    return unused + [id_ for _, id_ in sorted(used)[: limit - len(unused)]]
