"""A one-user story that uses every verb at least once, and the invalid calls that each verb rejects.

`asks` is a memory or a client. The results of two stories are equal once `normal` has replaced values that depend on
the store or the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from memory_agent.errors import InvalidInputError

Ask = Callable[..., Any]
"""Calls a method by its dotted name."""

RACE = "the auth race needed a mutex"
LUNCH = "lunch is at noon in the canteen"
_ULID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")
_NAME_END = re.compile(r" #[0-9a-f]{6}\b")  # derived from the store's secret
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_VARIES = (
    "consolidated_at",  # set by upkeep at an arbitrary time
    "took_ms",
    "took_s",
    "disk_bytes",
    "bytes_before",
    "bytes_after",
    "ids_sha256",
    "state_bytes",
    "uptime_s",
    "cursor",
    "digest",  # depends on the id
    "memory_state",
    "author",  # derived from the store's secret
    "author_id",
)
_FIRST = "f1rst-run"
_THEN = datetime(2026, 2, 16, 10, tzinfo=UTC)

BAD: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("recall", {"query": ""}, "query"),
    ("recall", {"query": 7}, "query"),
    ("recall", {"query": "x", "top_k": 0}, "top_k"),
    ("recall", {"query": "x", "mode": "psychic"}, "mode"),
    ("recall", {"query": "x", "deadline_ms": float("nan")}, "deadline_ms"),
    ("recall", {"query": "x", "colour": "red"}, "colour"),
    ("recall", {"query": "x", "filter": {"tags": "deploy"}}, "filter.tags"),
    ("recall", {"query": ["x", 7]}, "query[1]"),
    ("recall", {"query": "x", "vector": [0.0], "vector_model": "m"}, "vector"),
    ("recall", {"query": "x", "vector": [1.0]}, "vector_model"),
    ("recall", {"query": "x", "unlogged": "yes"}, "unlogged"),
    ("remember", {"text": ""}, "text"),
    ("remember", {"text": "x", "kind": "story"}, "kind"),
    ("remember", {"text": "x", "source": "hearsay"}, "source"),
    ("remember", {"text": "x", "tags": "deploy"}, "tags"),
    ("remember", {"text": "x", "metadata": "a word"}, "metadata"),
    ("remember", {"text": "x", "metadata": {"a": {"b": [float("nan")]}}}, "metadata.a.b[0]"),
    ("remember", {"text": "x", "id": ""}, "id"),
    ("remember", {"text": "x", "id": "a\nb"}, "id"),
    ("remember", {"text": "x", "id": 7}, "id"),
    ("remember", {"text": "x", "phase": "x" * 300}, "phase"),
    ("remember", {"text": "x", "timestamp": datetime(2026, 2, 16)}, "timestamp"),  # noqa: DTZ001
    ("remember", {"text": "x", "timestamp": datetime(9_000, 1, 1, tzinfo=UTC)}, "timestamp"),
    ("remember", {"text": "x", "quality_score": 1.5}, "quality_score"),
    ("list", {"limit": 0}, "limit"),
    ("list", {"order": "best"}, "order"),
    ("list", {"after": "not a cursor"}, "after"),
    ("list", {"filter": {"colour": "red"}}, "filter.colour"),
    ("list", {"filter": {"metadata": {"a": {"b": 1}}}}, "filter.metadata[...]"),
    ("sessions", {"limit": 0}, "limit"),
    ("sessions", {"after": "not a cursor"}, "after"),
    ("sessions", {"filter": {"min_score": 0.5}}, "filter.min_score"),
    ("map", {"limit": 0}, "limit"),
    ("map", {"limit": 10_001}, "limit"),
    ("stats", {"filter": {"colour": "red"}}, "filter.colour"),
    ("stats", {"filter": {"min_score": 0.5}}, "filter.min_score"),
    ("erasure.erase", {"filter": {"colour": "red"}}, "filter.colour"),
    ("recall", {"query": "x", "filter": {"colour": "red"}}, "filter.colour"),
    ("list", {"filter": {"min_score": 0.5}}, "filter.min_score"),
    ("list", {"filter": {"metadata": {"a": []}}}, "filter.metadata.a"),
    ("recall", {"query": "x", "filter": {"metadata": {"a": float("nan")}}}, "filter.metadata.a"),
    ("erasure.erase", {"filter": {"metadata": {"a": []}}}, "filter.metadata.a"),
    ("get", {"ids": "01JM0000000000000000000000"}, "ids"),
    ("get", {"ids": 7}, "ids"),
    ("forget", {"ids": "01JM0000000000000000000000"}, "ids"),
    ("forget_session", {"session_id": 7}, "session_id"),
    ("feedback", {"recall_id": "never", "quality": 1.0}, "recall_id"),
    ("feedback", {"recall_id": "r", "used": "x"}, "used"),
    ("feedback", {"recall_id": "r"}, "used"),
    ("feedback", {"recall_id": "r", "quality": 2.0}, "quality"),
    ("runs.begin", {"objective": " "}, "objective"),
    ("runs.begin", {"objective": "x", "recall_ids": "x"}, "recall_ids"),
    ("runs.begin", {"objective": "x", "event_id": ""}, "event_id"),
    ("runs.step", {"run_id": "", "text": "x"}, "run_id"),
    ("runs.step", {"run_id": "r", "text": "x", "memory_ids": "x"}, "memory_ids"),
    ("runs.end", {"run_id": "r", "outcome": "won"}, "outcome"),
    ("runs.end", {"run_id": "r", "quality": True}, "quality"),
    ("runs.get", {"run_id": ""}, "run_id"),
    ("runs.similar", {"query": " "}, "query"),
    ("runs.similar", {"query": "x", "top_k": 0}, "top_k"),
    ("runs.similar", {"query": "x", "min_relevance": 2}, "min_relevance"),
    ("recall", {"query": "x", "runs": -1}, "runs"),
    ("recall", {"query": "x", "runs": True}, "runs"),
    ("runs.list", {"state": "closed"}, "state"),
    ("runs.list", {"limit": 0}, "limit"),
    ("sona.load", {"data": b"not an export"}, "data"),
    ("care.rebuild", {"vectors": "yes"}, "vectors"),
    ("recall", {"query": "x", "tiers": "global"}, "tiers"),
    ("recall", {"query": "x", "tiers": ["everything"]}, "tiers[0]"),
    ("shared.preview", {"title": "x"}, "summary"),
    ("shared.preview", {"memory_id": "unknown"}, "memory_id"),
    ("shared.preview", {"title": "x", "summary": "y", "version": "a b"}, "version"),
    ("shared.preview", {"title": "x", "summary": "y", "access_policy": "org:"}, "access_policy"),
    ("shared.preview", {"title": "x", "summary": "y", "tags": "deploy"}, "tags"),
    ("shared.preview", {"title": "x", "summary": "y", "content_type": "tool"}, "content_type"),
    ("shared.preview", {"title": "x", "summary": "y", "item_id": "i-1"}, "item_id"),
    ("shared.preview", {"title": "x", "summary": "y", "attachment_name": "x.md"}, "attachment"),
    ("shared.confirm", {"preview": "x"}, "preview"),
    ("shared.preview", {"title": "x", "summary": "y", "offer": True, "reference": "/x"}, "reference"),
    ("shared.offer", {"preview": "x"}, "preview"),
    ("shared.unpublish", {"item_id": "i-1"}, "item_id"),
    ("shared.item", {"item_id": "i-1"}, "item_id"),
    ("shared.item", {"item_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "item_id"),
    ("shared.attachment", {"item_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "item_id"),
    ("shared.rate", {"item_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "rating": 1.0}, "item_id"),
    ("shared.rate", {"item_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "rating": 7}, "rating"),
    ("shared.search", {"query": " "}, "query"),
    ("shared.search", {"query": "x", "top_k": 0}, "top_k"),
    ("shared.search", {"query": "x", "tags": "deploy"}, "tags"),
    ("shared.search", {"query": "x", "content_types": ["tool"]}, "content_types[0]"),
    ("shared.set_name", {"name": "..."}, "name"),
    ("shared.set_name", {"name": ""}, "name"),
    ("erasure.erase", {}, "selection"),
    ("erasure.erase", {"record_ids": "01JM0000000000000000000000"}, "ids"),
    ("erasure.erase", {"filter": {}}, "filter"),
    ("erasure.erase", {"session_id": " "}, "session_id"),
)
BAD_OF_DAEMON: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("retry_quarantined", {"ids": [7]}, "ids"),
    ("drop_quarantined", {"ids": [7]}, "ids"),
    ("drop_quarantined", {"ids": "7"}, "ids"),
    ("wait", {"through": "user-carl", "timeout_s": 1.0}, "through"),
    ("wait", {"through": {"user-carl": "soon"}, "timeout_s": 1.0}, "through[...]"),
    ("quarantined", {"limit": "all"}, "limit"),
    ("owner", {}, "run_id"),
    ("owner", {"run_id": "run-1", "session_id": "s-1"}, "run_id"),
    ("owner", {"session_id": 7}, "session_id"),
)


class Story:
    """Calls methods, and records the results."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.told: list[tuple[str, Any]] = []

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        result = self._ask(method, *arguments, **named)
        self.told.append((method, result))
        return result

    def tell(self) -> None:
        """Use every verb that an embedded memory has."""
        race = self.ask("remember", RACE)
        lunch = self.ask(
            "remember", LUNCH, "episode", "worker_result", ["food", "noon"], "Lunch", "verified", {"floor": 3}, "s-1"
        )
        found = self.ask("recall", "auth race", mode="lexical")
        self.ask("recall", "lunch canteen", 3, {"kinds": ["episode"]}, "lexical", 5_000.0, dates="ignore")
        own = {"channel_id": "ops", "agent_id": "a-1", "type": "note", "phase": "rollout", "quality_score": 0.5}
        self.ask("remember", "staging needs the VPN", id="vpn", run_id="r-1", timestamp=_THEN, **own)
        self.ask("remember", "staging needs no VPN", id="vpn", metadata={"host": {"name": "staging"}}, **own)
        page = self.ask("list", {"metadata": {"host.name": "staging"}, "type": "note"}, "updated")
        assert [record.text for record in page.records] == ["staging needs no VPN"]
        first = self.ask("list", order="oldest", limit=1)
        self.told.pop()  # its cursor contains a time
        self.ask("list", None, "oldest", 1_000, first.next_cursor)
        self.ask("recall", "VPN", filter={"phase": "rollout", "channel_id": "ops"}, mode="lexical")
        self.ask("recall", ["staging", "VPN"], mode="lexical", min_relevance=0.0)
        of = self._ask("stats")  # without a model, any vector is accepted
        own_vector = [1.0, *[0.0] * ((of.ndim or 2) - 1)]
        self.ask("recall", vector=own_vector, vector_model=of.model or "mine", top_k=1)
        self.ask("forget", ["vpn"])
        self.ask("get", [lunch.id, "01ARZ3NDEKTSV4RRFFQ69G5FAV", race.id])
        self.ask("get", ids=(race.id,), with_embedding=True)
        self.ask("runs.begin", "Fix the auth race", _FIRST, "s-1", [found.recall_id], event_id="e-1")
        self.ask("runs.begin", "Fix the auth race", _FIRST, "s-1", [found.recall_id], event_id="e-1")
        self.ask("runs.step", _FIRST, "Put a mutex around the refresh", [race.id])
        self.ask("runs.end", _FIRST, summary="It holds", quality=0.9, memory_ids=[race.id])
        self.ask("runs.get", _FIRST)
        self.ask("runs.get", "no such run")
        like = self.ask("runs.similar", "Fix the auth race", 3, 0.0)
        assert [(run.id, run.because.text) for run in like] == [(_FIRST, "It holds")]
        told = self.ask("recall", "the auth race", mode="lexical", runs=1, context_tokens=300, min_relevance=0.0)
        assert "Previously: Put a mutex around the refresh; rated (0.9): It holds" in told.context
        self.ask("runs.list")
        self.ask("runs.list", "open", limit=1)
        self.ask("feedback", found.recall_id, [race.id], 1.0, "Held for a week")
        self.ask("stats", {"tags": ["food"], "session_id": "s-1"})
        (session,) = self.ask("sessions", {"session_id": "s-1"}, limit=1).sessions
        assert (session.runs, session.title) == (1, LUNCH)
        self.ask("map", limit=1_000)
        self.ask("sona.status")
        data = self.ask("sona.export")
        self.told.pop()  # its bytes contain ids and times
        self.told.append(("sona.export", type(data).__name__))
        self.ask("sona.load", data)
        self.ask("sona.reset")
        preview = self.ask("shared.preview", memory_id=race.id, body="ask Ann Lee", tags=["auth"], attachment=b"0123")
        item = self.ask("shared.confirm", preview, b"0123")
        assert self.ask("shared.confirm", preview, attachment=b"0123") == item
        named = self.ask("shared.set_name", "Ann of the platform team")
        assert self.ask("shared.name") == named
        again = self.ask(
            "shared.preview",
            "Auth",
            "the auth race needs a mutex",
            version="2",
            item_id=item.id,
            access_policy="public",
        )
        self.ask("shared.confirm", again)
        third = self.ask("shared.confirm", self.ask("shared.preview", "Auth", "no mutex", attachment=b"x"), b"x")
        assert self.ask("shared.item", third.id) == third
        assert self.ask("shared.attachment", third.id).data == b"x"
        assert [found.item.version for found in self.ask("shared.search", "auth race", 1)] == ["2"]
        both = self.ask("recall", "auth race", mode="lexical", tiers=["local", "global"], min_relevance=0.0)
        assert {found.tier for found in both.memories} == {"local"}  # the only shared item is the caller's own
        try:
            self.ask("shared.rate", item.id, 0.5)
        except InvalidInputError as error:
            self.told.append(("shared.rate", str(error)))
        self.ask("shared.published")
        offer = self.ask("shared.offer", self.ask("shared.preview", "Auth", "a mutex, not a lock", offer=True))
        assert self.ask("shared.offered") == [offer]
        self.ask("shared.unpublish", offer.content.item_id)
        self.ask("shared.unpublish", item.id)
        self.ask("shared.unpublish", third.id)
        self.ask("shared.set_name", None)
        self.told.pop()
        self.ask("care.rebuild")
        self.ask("care.compact")
        self.ask("erasure.erase", [lunch.id, "unknown"], dry_run=True)
        self.ask("erasure.erase", filter={"tags": ["food"]})
        self.ask("erasure.erase_expired", dry_run=True)
        self.ask("erasure.erase_expired")
        self.ask("forget_session", "s-1")
        self.ask("forget", [race.id, race.id, "unknown"])
        self.ask("stats")

    def tell_of_daemon(self, user_id: str) -> None:
        """Use every verb that only a daemon handles."""
        self.ask("status")
        text = self.ask("metrics")
        self.told.pop()  # it counts requests
        self.told.append(("metrics", type(text).__name__))
        self.ask("address")
        self.ask("wait", {user_id: 0}, 30.0)
        self.ask("owner", run_id="unknown")
        self.ask("owner", session_id="unknown")
        self.ask("quarantined")
        self.ask("quarantined", 3, limit=5)
        self.ask("retry_quarantined")
        self.ask("drop_quarantined", ())
        self.ask("erasure.erase_user", dry_run=True)
        self.ask("erasure.erase_user")

    def normal(self, user_id: str) -> list[tuple[str, Any]]:
        """Return the results as plain data that compares equal for equal stories."""
        seen: dict[str, str] = {}
        return [(method, _normal(msgspec.to_builtins(result), user_id, seen)) for method, result in self.told]


def _normal(value: Any, user_id: str, seen: dict[str, str]) -> Any:
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in _VARIES}
        return {_normal(key, user_id, seen): _normal(one, user_id, seen) for key, one in kept.items()}
    if isinstance(value, list | tuple):
        return [_normal(one, user_id, seen) for one in value]
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, str):
        value = _ULID.sub(lambda found: seen.setdefault(found[0], f"id-{len(seen)}"), value)
        return _NAME_END.sub("", _TIME.sub("TIME", value)).replace(user_id, "USER")
    return value
