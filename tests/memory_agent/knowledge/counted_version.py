"""The figures of one version, with the users' contributions in a dictionary."""

from __future__ import annotations

import msgspec

from memory_agent.knowledge.figures import Contribution, Figures, Part, Standing
from memory_agent.records.shared import QualityMetrics


class CountedVersion(Figures):
    """The sums and the contributions of one version, which are stored separately."""

    def __init__(self, key: bytes, author: bytes) -> None:
        self.parts: dict[bytes, Part] = {}
        super().__init__(Standing.create(key, author), self.parts)

    @property
    def contributions(self) -> dict[bytes, Contribution]:
        return {user: part.sums for user, part in self.parts.items() if part.sums != Contribution()}

    @property
    def is_proven(self) -> bool:
        return self.standing.is_proven

    @property
    def boost(self) -> float:
        return self.standing.boost

    def metrics(self) -> QualityMetrics:
        return self.standing.metrics()

    def to_bytes(self) -> bytes:
        """Return the whole state, after checking that the sums match the contributions."""
        assert self.standing == self.standing.counted(self.parts)
        return msgspec.msgpack.encode((self.standing, sorted(self.parts.items())))
