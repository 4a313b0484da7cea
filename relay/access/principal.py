"""Principals and scopes: who holds a request's key, and what the key permits. Pure.

A request's principal is determined only by its credentials, never by its content.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from relay.errors import ScopeMissingError, UserNotAllowedError


class Scope(StrEnum):
    """What a key permits. No scope implies another.

    `publish`: write events and memories. `recall`: read. `share`: publish, unpublish and rate items for other users.
    `shared-admin`: withdraw the items of any user. `join`: join the daemon's cluster as a machine that hosts users.
    `metrics`: read the daemon's figures. `admin`: everything else.
    """

    PUBLISH = "publish"
    RECALL = "recall"
    ADMIN = "admin"
    SHARE = "share"
    SHARED_ADMIN = "shared-admin"
    JOIN = "join"
    METRICS = "metrics"


ALL_SCOPES = frozenset(Scope)
PUBLIC = "public"


class Origin(NamedTuple):
    """The key that published an event, as stored in the journal. Only events published with a key `for_all` users may
    name an owner.
    """

    key_id: str
    for_all: bool


class Principal(NamedTuple):
    """The holder of a key. If `user_id` is None, the key is for all users.

    `groups`: `org:NAME` and `tier:NAME`, as in policies.
    """

    key_id: str
    user_id: str | None
    scopes: frozenset[Scope]
    groups: frozenset[str] = frozenset()

    @property
    def audiences(self) -> frozenset[str]:
        return self.groups | {PUBLIC}

    @property
    def origin(self) -> Origin:
        return Origin(self.key_id, self.user_id is None)

    def may(self, scope: Scope, user_id: str | None) -> bool:
        """Return whether `scope` is permitted for a user, or for all users (None)."""
        return scope in self.scopes and self.user_id in (None, user_id)

    def require(self, scope: Scope, user_id: str | None) -> None:
        """Raise `ScopeMissingError` or `UserNotAllowedError` if `scope` is not permitted for a user, or for all users
        (None).
        """
        if scope not in self.scopes:
            raise ScopeMissingError(scope.value, self.key_id)
        if self.user_id is not None and user_id is None:
            raise UserNotAllowedError(
                "user_id", f"the key {self.key_id} is for one user; this request requires a key for all users"
            )
        if self.user_id not in (None, user_id):
            raise self.not_for_user()

    def not_for_user(self) -> UserNotAllowedError:
        """Return the error for a request about another user. The error names the key, but not the user."""
        hint = "omit the user, or use that user's key"
        return UserNotAllowedError("user_id", f"the key {self.key_id} is for another user; {hint}")


def publisher_for_all(key_id: str) -> Principal:
    """Return the principal of an intake that accepts events without keys."""
    return Principal(key_id, None, frozenset({Scope.PUBLISH}))
