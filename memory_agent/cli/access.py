"""Open a memory: through the daemon if one is running, otherwise from its files.

Without a daemon, a provided key is looked up in the data folder. A command that ignored the key might write to another
user's memory. A CURVE key is not verified, because only a connection proves possession of the secret key.
"""

from __future__ import annotations

import difflib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from memory_agent.cli.failure import USED_KEY, note
from memory_agent.cli.options import Target
from memory_agent.cli.progress import Report, progress_bars
from memory_agent.errors import EncryptionKeyMissingError, InvalidInputError, UnavailableError
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.verbs.protocol import Request
from relay import SHARED_USER, Credentials, Principal

if TYPE_CHECKING:
    from memory_agent.care import OnMissingKey
    from memory_agent.client import MemoryClient
    from memory_agent.memory import Memory

Answer = TypeVar("Answer")

_MOST_NAMED = 8
_CONNECT_TIMEOUT_S = 3.0
_END_S = 10.0
_POLL_S = 0.05
_CALL_KEY = "memory_agent.call"


@contextmanager
def open_memory(target: Target, verb: str) -> Iterator[MemoryClient | Memory]:
    """Open the user's memory for `verb`. If a key is provided, it must permit `verb`.

    Without a daemon, a store is created only for a verb that stores something. After a successful command, a note shows
    whether the daemon or the files were used. Raises the errors of `Memory.open` and `authorize`, and
    `UnavailableError` if no daemon listens at the endpoint.
    """
    if uses_daemon(target):
        holder = None if target.endpoint is not None else target.layout.holder
        with open_client(target) as client:
            yield client
        if sys.stderr.isatty():
            process = "" if holder is None else f" {holder.version}, process {holder.pid},"
            _note_used(target, f"used the daemon{process} at {target.endpoint or target.layout.gateway}")
        return
    from memory_agent.care import offline  # imports the engines
    from memory_agent.records.shared_requests import Rights, rights_of

    target = authorize(target, verb)
    key = principal_of(target)
    rights = Rights(is_admin=True) if key is None else rights_of(key)  # without a key, the caller is the owner
    lend = offline.open_memory if _creates_user(verb) else offline.open_for_reading
    with (
        offline.shared_items(target.data_dir, target.settings) as shared,
        lend(target.data_dir, target.settings, target.user_id, shared=shared) as memory,
    ):
        yield memory.with_rights(rights)
    _note_used(target, f"no daemon serves {target.data_dir}; the files were used directly")


def _note_used(target: Target, used: str) -> None:
    """Store the note about what the command used; it is printed when the command ends. With --json, no note is
    printed.
    """
    if not target.as_json:
        click.get_current_context().meta[USED_KEY] = used


def _creates_user(name: str) -> bool:
    from memory_agent.verbs.table import BY_NAME  # late, as `offline`

    verb = BY_NAME[name]
    return verb.repeat != "read" and verb.method.partition(".")[0] not in ("shared", "care")


def note_unknown_user(target: Target) -> None:
    """If the user has no store and the caller owns the data folder, print a note that lists other users."""
    is_owner = target.endpoint is None and target.token is None and target.key_file is None
    if target.as_json or not is_owner or user_folder(target.data_dir, target.user_id).exists():
        return
    users = [user_id for user_id in known_users(target.data_dir) if user_id != SHARED_USER]
    close = difflib.get_close_matches(target.user_id, users, 1)
    others = [user for user in users if user not in close][: _MOST_NAMED - len(close)]
    more = len(users) - len(close) - len(others)
    here = ", ".join([*close, *others]) + (f" and {more} more" if more else "")
    note(f"no memories yet for user {target.user_id} in {target.data_dir}" + (f"; users here: {here}" if users else ""))


def uses_daemon(target: Target) -> bool:
    """Return whether an endpoint was given or a daemon serves the data folder. While this command runs, a daemon that a
    client started does not stop when it is idle.
    """
    if target.endpoint is not None:
        return True
    until_s = time.monotonic() + _END_S
    while (call := target.layout.call()) is None and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    click.get_current_context().meta[_CALL_KEY] = call
    return target.layout.daemon_runs()


def open_client(target: Target) -> MemoryClient:
    """Return a client of the daemon. Without a daemon, this call or the first request raises `UnavailableError`."""
    if target.endpoint is not None and not listens(target.endpoint):
        hint = f"start one there with: memory-agent serve --listen {target.endpoint}"
        raise UnavailableError(f"no daemon listens at {target.endpoint}; {hint}")
    note_settings(target)
    if target.endpoint is None and (holder := target.layout.holder) is not None:
        note_version(holder.version)
    from memory_agent.client import MemoryClient  # imports sockets

    return MemoryClient(
        target.only_user,
        data_dir=target.data_dir,
        endpoint=target.endpoint,
        token=target.token,
        key_file=target.key_file,
    )


def note_settings(target: Target) -> None:
    """Print a note that settings on the command line do not change a running daemon."""
    if target.settings_named:
        note("the daemon keeps its own settings; --set and --config do not change them")


def note_version(daemons: str) -> None:
    """Print a note if the daemon was not restarted after an upgrade. `daemons` is the daemon's version, if known."""
    from memory_agent.version import VERSION  # imported late: reads the package's metadata

    if daemons and daemons != VERSION:
        note(f"the running daemon has version {daemons}, this command {VERSION}; to restart it: memory-agent stop")


def principal_of(target: Target) -> Principal | None:
    """Return the principal of the provided key, or None if there is no key.

    Raises `UnauthorizedError` for an unknown or revoked key, and `RelaySettingsError` for an unreadable key file.
    """
    if target.key_file is None and not target.token:
        return None
    shown, credentials = target.identity, Credentials(target.data_dir)
    if shown.curve is not None:
        return credentials.of_curve(shown.curve.public)
    return credentials.of_token(shown.token.encode())


def authorize(target: Target, verb: str) -> Target:
    """Check that the key, if any, permits `verb`; return the target, with the key's user if the key is for one user.

    Raises `UnauthorizedError`, `UserNotAllowedError`, `ScopeMissingError`, `RelaySettingsError` and
    `InvalidInputError`.
    """
    if target.user_id == SHARED_USER:
        from memory_agent.verbs.table import OF_ANY_STORE  # late, as below

        if verb not in OF_ANY_STORE:
            raise InvalidInputError("user_id", f"{SHARED_USER} is reserved for shared items")
    principal = principal_of(target)
    if principal is None:
        return target
    from memory_agent.doors.reception import permitted

    request = Request(method=verb, user_id=target.user_id if target.user_named else "")
    return replace(target, user_id=permitted(request, principal).user_id, user_named=True)


def skip_without_key(target: Target) -> OnMissingKey | None:
    """Return `note_skipped`, or None with --user, which makes a missing key an error."""
    return None if target.user_named else note_skipped


def note_skipped(error: EncryptionKeyMissingError) -> None:
    note(f"skipping user {error.user_id}: {error}")


def for_each_user(
    target: Target, verb: str, what: str, ask: Callable[[MemoryClient | Memory, Report], Answer]
) -> dict[str, Answer]:
    """Call `ask` for the named user, or for each user of the data folder, and return the results by user.

    With an endpoint, or a key for one user, `ask` is called for one user only. Users whose encryption key is missing
    are skipped with a note; for the named user, this is an error. The store of shared items counts as a user.
    """
    users = [target.user_id] if target.user_named or target.endpoint is not None else _users(target)
    answers: dict[str, Answer] = {}
    with progress_bars() as report:
        for done, user_id in enumerate(users):
            report(what, done, len(users))
            one = target if user_id == target.user_id else replace(target, user_id=user_id, user_named=True)
            try:
                with open_memory(one, verb) as memory:
                    answers[user_id] = ask(memory, report)
                    note_unknown_user(one)
            except EncryptionKeyMissingError as error:
                if target.user_named:
                    raise
                note_skipped(error)
        report(what, len(users), len(users))
    return answers


def _users(target: Target) -> list[str]:
    key = principal_of(target)
    return list(known_users(target.data_dir)) if key is None or key.user_id is None else [key.user_id]


def listens(endpoint: str) -> bool:
    """Return whether a process listens at an ipc or tcp endpoint; True for other endpoints. ZeroMQ itself would retry
    the connection indefinitely.
    """
    scheme, _, address = endpoint.partition("://")
    try:
        if scheme == "ipc":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(_CONNECT_TIMEOUT_S)
                peer.connect(address)
        elif scheme in ("tcp", "curve+tcp"):
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True
