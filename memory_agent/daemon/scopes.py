"""What a key must be for, verb by verb, and whose memory a request then speaks of. Pure.

The user follows from the key: a key for one user need not name it, and may name no other. What is not listed here is
for administrators, so a verb that is added and forgotten lets in too few, not too many.
"""

from __future__ import annotations

import msgspec

from memory_agent import errors
from memory_agent.daemon.verbs import USER_METHODS
from memory_agent.protocol import DEFAULT_USER, Request, WaitParams, decode
from relay import Principal, Scope, ScopeMissingError, UserNotAllowedError

_SCOPES = {
    "recall": Scope.RECALL,
    "get": Scope.RECALL,
    "stats": Scope.RECALL,
    "run_get": Scope.RECALL,
    "run_list": Scope.RECALL,
    "sona_status": Scope.RECALL,
    "remember": Scope.PUBLISH,
    "feedback": Scope.PUBLISH,
    "run_begin": Scope.PUBLISH,
    "run_step": Scope.PUBLISH,
    "run_end": Scope.PUBLISH,
    "wait": Scope.PUBLISH,
}

_OF_USERS = USER_METHODS | {"erase"}


def scope_of(method: str) -> Scope:
    """Return the scope that a verb needs."""
    return _SCOPES.get(method, Scope.ADMIN)


def permitted(request: Request, principal: Principal) -> Request:
    """Return the request with the user that it speaks of.

    A verb of the daemon itself needs a key for all users. Raises `ScopeMissingError` and `UserNotAllowedError`, which
    do not tell whether the user exists, and `InvalidInputError`.
    """
    user_id = request.user_id or principal.user_id or DEFAULT_USER
    try:
        _check(request, principal, user_id)
    except ScopeMissingError as error:
        raise errors.ScopeMissingError(error.scope, error.key_id) from error
    except UserNotAllowedError as error:
        raise errors.UserNotAllowedError(error.field, error.reason) from error
    return msgspec.structs.replace(request, user_id=user_id)


def _check(request: Request, principal: Principal, user_id: str) -> None:
    scope = scope_of(request.method)
    if request.method == "wait":
        if scope not in principal.scopes:
            raise ScopeMissingError(scope.value, principal.key_id)
        for waited_for in decode(request.params, WaitParams).through:
            principal.require(scope, waited_for)
    else:
        principal.require(scope, user_id if request.method in _OF_USERS else None)
