"""Erases events that coding agents' hooks wrote to the data folder and that no daemon has acknowledged.

`hooks.waiting` writes the files. The name of a subfolder identifies another key or daemon.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from memory_agent.errors import StoreError
from relay import Erasable, read_keys
from relay.disk import write_private

_FOLDER = "hooks"
_FINISHED = ".jsonl"
_NAME_CHARS = 24  # of the SHA-256 of a key's token
_WRITTEN_WITHIN_S = 1.0
_SENT_WITHIN_S = 10.0
_PAUSE_S = 0.02


def erase_hook_events(data_dir: Path, wanted: Erasable, default_user: str) -> None:
    """Erase a user's selected events from the hook files in a data folder. Durable on return. Idempotent.

    Events that name no user and are waiting for a key for all users belong to `default_user`. Call this before erasing
    from the journal, because it waits for hooks that are sending. Raises `KeyFileError`, and `StoreError` if a file
    cannot be changed or a hook is still sending after 10 s.
    """
    for place, owner in _places(data_dir, default_user):
        try:
            with _sending_paused(place):
                for file in sorted(path for path in place.iterdir() if path.is_file()):
                    _erase_from(file, wanted, owner)
        except OSError as error:
            raise StoreError(f"{error.filename or place}: {error.strerror}") from error


def left_hook_events(data_dir: Path) -> tuple[str, ...]:
    """Return the subfolders with events that name no user and wait for an unknown key."""
    return tuple(
        str(place.relative_to(data_dir))
        for place, owner in _places(data_dir, "")
        if owner is None and any(_names_no_user(line) for file in place.glob(f"*{_FINISHED}") for line in _lines(file))
    )


def _places(data_dir: Path, default_user: str) -> list[tuple[Path, str | None]]:
    folder = data_dir / _FOLDER
    if not folder.exists():
        return []
    owners = {key.token_sha256[:_NAME_CHARS]: key.user_id or default_user for key in read_keys(data_dir)}
    return [(folder, default_user), *((place, owners.get(place.name)) for place in sorted(folder.glob("*/")))]


@contextmanager
def _sending_paused(folder: Path) -> Iterator[None]:
    """Hold the lock that prevents hooks from sending earlier files."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        end_s = time.monotonic() + _SENT_WITHIN_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end_s:
                    raise StoreError(f"{folder}: a hook is sending these events; repeat the erasure") from error
                time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(lock)


def _erase_from(file: Path, wanted: Erasable, owner: str | None) -> None:
    if file.suffix != _FINISHED:
        _remove_unfinished(file)
        return
    lines = _lines(file)
    kept = [line for line in lines if not _is_selected(line, wanted, owner)]
    if len(kept) == len(lines):
        return
    if kept:
        write_private(file, b"".join(line + b"\n" for line in kept))
    else:
        file.unlink(missing_ok=True)


def _remove_unfinished(file: Path) -> None:
    """Remove a file left by a killed hook. A running hook renames its file at once, and can send without it."""
    with suppress(FileNotFoundError):
        while 0.0 <= time.time() - file.stat().st_mtime < _WRITTEN_WITHIN_S:
            time.sleep(_PAUSE_S)
        file.unlink()


def _lines(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().splitlines()
    except FileNotFoundError:  # the hook has sent it
        return []


def _is_selected(line: bytes, wanted: Erasable, owner: str | None) -> bool:
    """Whether to erase a line. A line that is not JSON is always erased."""
    fields = _fields(line)
    return fields is None or (fields.get("user_id", owner) == wanted.user_id and wanted.selects(fields))


def _names_no_user(line: bytes) -> bool:
    fields = _fields(line)
    return fields is not None and fields.get("user_id") is None


def _fields(line: bytes) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
