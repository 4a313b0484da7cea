"""Who asks: which key was shown, for which user it is, and what it may do. Pure.

A request never says who asks; the credential that it carries does (`credentials`). What this does not do: read key
files, or know which request needs which scope.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from relay.errors import ScopeMissingError, UserNotAllowedError


class Scope(StrEnum):
    """What a key may be for. `publish`: put events and memories in. `recall`: read. `admin`: the rest."""

    PUBLISH = "publish"
    RECALL = "recall"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)


class Origin(NamedTuple):
    """Which key published an event, as the journal keeps it. `for_all`: a key for all users, whose word counts for each
    of them; a key for one user speaks for that one alone."""

    key_id: str
    for_all: bool


class Principal(NamedTuple):
    """The holder of a key. `user_id` None: the key is for all users."""

    key_id: str
    user_id: str | None
    scopes: frozenset[Scope]

    @property
    def origin(self) -> Origin:
        """What the journal keeps of who published an event."""
        return Origin(self.key_id, self.user_id is None)

    def may(self, scope: Scope, user_id: str | None) -> bool:
        """Say whether this is allowed for a user, or for all of them (None)."""
        return scope in self.scopes and self.user_id in (None, user_id)

    def require(self, scope: Scope, user_id: str | None) -> None:
        """Raise unless this is allowed for a user, or for all of them (None).

        `ScopeMissingError` or `UserNotAllowedError`; neither tells whether the user exists.
        """
        if scope not in self.scopes:
            raise ScopeMissingError(scope.value, self.key_id)
        if self.user_id not in (None, user_id):
            raise self.not_for_user()

    def not_for_user(self) -> UserNotAllowedError:
        """Return the refusal of a user that this key is not for: it names the key, and tells nothing of users."""
        return UserNotAllowedError("user_id", f"is not the user that the key {self.key_id} is for")


def everybody(key_id: str) -> Principal:
    """Return who publishes for all users without a key: what the operator let in by a setting, named `key_id`."""
    return Principal(key_id, None, frozenset({Scope.PUBLISH}))
