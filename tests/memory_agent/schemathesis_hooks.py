"""Limits generated requests to short deadlines and a few users, because each user's store must be opened."""

from __future__ import annotations

from typing import Any

import schemathesis

PATIENCE_MS = 200.0
LONGEST_MS = 600_000
USERS = ("alice", "bob")


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    if not isinstance(case.body, dict):
        return
    deadline_ms, user_id = case.body.get("deadline_ms"), case.body.get("user_id")
    if deadline_ms is None or (type(deadline_ms) in (int, float) and 0 <= deadline_ms <= LONGEST_MS):
        case.body["deadline_ms"] = PATIENCE_MS
    if isinstance(user_id, str) and user_id.isalnum() and user_id.isascii():
        case.body["user_id"] = USERS[len(user_id) % len(USERS)]
