"""The way to a memory: through the daemon where one runs, on the files otherwise.

A store has one owner, so the files are opened only where no daemon serves them. What this file does not do: start a
daemon; verbs that need one say how.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from memory_agent.cli.addresses import listens
from memory_agent.cli.failure import note
from memory_agent.cli.options import Target
from memory_agent.cli.permission import as_permitted
from memory_agent.client import MemoryClient
from memory_agent.config import RetentionSettings
from memory_agent.errors import UnavailableError
from memory_agent.storage.folders import known_users, user_folder
from relay.config import EncryptionSettings

if TYPE_CHECKING:
    from memory_agent.memory import Memory

_MOST_NAMED = 8


@contextmanager
def open_memory(target: Target, method: str) -> Iterator[MemoryClient | Memory]:
    """Give the user's memory for a request of this method, which a key that was given must allow.

    Raises what `Memory.open` and `as_permitted` raise, and `UnavailableError` with an endpoint.
    """
    if asks_daemon(target):
        with open_client(target) as client:
            yield client
        return
    with open_files(as_permitted(target, method)) as memory:
        yield memory


@contextmanager
def open_to_look(target: Target, method: str) -> Iterator[MemoryClient | Memory]:
    """As `open_memory`, for who changes nothing: for a user who has no memories yet nothing is made."""
    if asks_daemon(target):
        with open_client(target) as client:
            yield client
        return
    target = as_permitted(target, method)
    target.layout.finish_restore()
    if user_folder(target.data_dir, target.user_id).exists():
        with open_files(target) as memory:
            yield memory
    else:
        with (
            TemporaryDirectory(prefix="memory-agent-") as nowhere,
            open_files(target, folder=Path(nowhere) / "empty") as memory,
        ):
            yield memory


def note_unknown(target: Target) -> None:
    """Tell the owner of the data folder who is there, where a name may be mistyped; nobody else is told."""
    is_owner = target.endpoint is None and target.token is None and target.key_file is None
    if target.as_json or not is_owner or user_folder(target.data_dir, target.user_id).exists():
        return
    users = list(known_users(target.data_dir))
    close = difflib.get_close_matches(target.user_id, users, 1)
    others = [user for user in users if user not in close][: _MOST_NAMED - len(close)]
    more = len(users) - len(close) - len(others)
    here = ", ".join([*close, *others]) + (f" and {more} more" if more else "")
    note(f"no memories yet for user {target.user_id} in {target.data_dir}" + (f"; users here: {here}" if users else ""))


def asks_daemon(target: Target) -> bool:
    """Say whether a daemon is to be asked: one was named, or one serves the data folder."""
    return target.endpoint is not None or target.layout.daemon_runs()


def open_client(target: Target) -> MemoryClient:
    """Return a client of the daemon. Where none runs, this or the client's first request raises `UnavailableError`."""
    if target.endpoint is not None and not listens(target.endpoint):
        hint = f"start one there with: memory-agent serve --listen {target.endpoint}"
        raise UnavailableError(f"no daemon listens at {target.endpoint}; {hint}")
    note_settings(target)
    return MemoryClient(
        target.user_id if target.user_named else None,
        data_dir=target.data_dir,
        endpoint=target.endpoint,
        token=target.token,
        key_file=target.key_file,
    )


def note_settings(target: Target) -> None:
    """Tell that settings of the command line do not reach a daemon that runs."""
    if target.settings_named:
        note("the daemon keeps its own settings; --set and --config do not change them")


def open_files(target: Target, retention: RetentionSettings | None = None, folder: Path | None = None) -> Memory:
    """Open the user's memory on its files, or those in another folder, in this process. What is too old goes when it is
    asked for, and not before: a verb that only looks must not erase."""
    from memory_agent.memory import Memory  # the engines, for those who really need them

    target.key_of(target.user_id)  # refuses keys inside the data folder, not only inside the user's
    if folder is None:
        target.layout.create()
        target.layout.finish_restore()
    return Memory.open(
        folder or user_folder(target.data_dir, target.user_id),
        user_id=target.user_id,
        settings=target.settings,
        encryption_settings=None if folder is None else EncryptionSettings(),  # no key for a mistyped user
        retention_settings=retention or RetentionSettings(),
        age_now=False,
    )
