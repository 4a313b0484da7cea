"""Which memories are kept for how long: rules in order, of which the first that fits a memory decides. Pure.

A memory ages from its own time, which is when its event happened, not when it came in; so a history that is brought in
late may be too old at once. What this does not do: erase (`eraser`), or find out when to look (`aging`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec

from memory_agent.config import RetentionRule, RetentionSettings
from memory_agent.errors import SettingsError
from memory_agent.records import MemoryRecord
from memory_agent.signals.table import SignalTable
from relay import matches_any


class Rules:
    """The rules of retention. Immutable."""

    def __init__(self, settings: RetentionSettings, table: SignalTable) -> None:
        """Raises `SettingsError` for a name that two rules have, or a signal that the table does not have."""
        self._rules = settings.rules
        self._table = table
        for place, rule in enumerate(self._rules):
            if any(rule.name == earlier.name for earlier in self._rules[:place]):
                raise SettingsError(f"retention.rules[{place}].name", f"{rule.name} is the name of another rule")
            if unknown := set(rule.signals) - table.names:
                raise SettingsError(f"retention.rules[{place}].signals", f"there is no signal {min(unknown)}")

    @property
    def is_off(self) -> bool:
        """Whether nothing ever reaches its age."""
        return not any(rule.age_s for rule in self._rules)

    @property
    def digest(self) -> str:
        """A short name of these rules: under others, what is known of when to look is worth nothing."""
        meant = [(rule, self._table.digest if rule.signals else "") for rule in self._rules]
        return sha256(msgspec.json.encode(meant)).hexdigest()[:16]

    def rule_of(self, record: MemoryRecord) -> RetentionRule | None:
        """Return the rule that decides about a memory, or None."""
        return next((rule for rule in self._rules if self._fits(rule, record)), None)

    def expiry(self, record: MemoryRecord) -> tuple[datetime, str] | None:
        """Return when a memory has reached its age, and the name of the rule; None for one that stays."""
        rule = self.rule_of(record)
        if rule is None or not rule.age_s:
            return None
        try:
            return record.timestamp + timedelta(seconds=rule.age_s), rule.name
        except OverflowError:
            return None

    def _fits(self, rule: RetentionRule, record: MemoryRecord) -> bool:
        return (
            _is_among(record.kind, rule.kinds)
            and _is_among(record.source, rule.sources)
            and (not rule.tags or not set(rule.tags).isdisjoint(record.tags))
            and (not (rule.events or rule.signals) or self._comes_from(rule, record.metadata.get("event_type")))
        )

    def _comes_from(self, rule: RetentionRule, event_type: object) -> bool:
        if not isinstance(event_type, str):
            return False
        is_of_events = not rule.events or matches_any(rule.events, event_type)
        return is_of_events and (not rule.signals or self._table.name_of(event_type) in rule.signals)


def _is_among(value: str, wanted: Sequence[str]) -> bool:
    return not wanted or value in wanted
