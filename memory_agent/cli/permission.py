"""What a key allows where no daemon is there to ask: it is looked up in the data folder, and obeyed as a daemon does.

Whoever can read the files needs no key, so this keeps nobody out; it keeps a key that was given from being passed over,
and what it is for from being written under another user. What this does not do: check that the holder of a CURVE key
has its secret half, which only a connection shows.
"""

from __future__ import annotations

from dataclasses import replace

from memory_agent.cli.options import Target
from memory_agent.doors.reception import permitted
from memory_agent.protocol import Request
from relay.access import Credentials, Principal


def key_shown(target: Target) -> Principal | None:
    """Return whose key was given, as the data folder knows it; None where none was.

    Raises `UnauthorizedError` for a key that is not known there or was revoked, `RelaySettingsError` for a file that
    is none.
    """
    if target.key_file is None and not target.token:
        return None
    shown, credentials = target.identity, Credentials(target.data_dir)
    if shown.curve is not None:
        return credentials.of_curve(shown.curve.public)
    return credentials.of_token(shown.token.encode())


def as_permitted(target: Target, method: str) -> Target:
    """Return the target with the user whom the request speaks of: of a key for one user, that one.

    Raises what `key_shown` and `permitted` raise.
    """
    principal = key_shown(target)
    if principal is None:
        return target
    request = Request(method=method, user_id=target.user_id if target.user_named else "")
    return replace(target, user_id=permitted(request, principal).user_id, user_named=True)
