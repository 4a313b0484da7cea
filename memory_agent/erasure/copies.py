"""Adds to receipts a list of the copies of a user's data that an erasure cannot reach: backups, exports, and some
events of hooks.

`backup` and `export` record their output in DATA/copies.jsonl, which contains paths, times and user ids, but no text.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from memory_agent.erasure.hook_events import left_hook_events
from memory_agent.erasure.request import ErasureReceipt
from relay import SHARED_USER, described

COPIES_FILE = "copies.jsonl"
_MOST_NAMED = 20


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder with the data of one user, or of all users (None), and the time at which it was written."""

    kind: Literal["backup", "export"]
    path: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    user_id: str | None = None


def note_copy(
    data_dir: Path, kind: Literal["backup", "export"], path: Path, user_id: str | None, now: datetime
) -> None:
    """Record a backup or an export, so that later receipts name it. Raises `OSError`."""
    line = msgspec.json.encode(Copy(kind=kind, path=str(path.absolute()), at=now, user_id=user_id)) + b"\n"
    with open(os.open(data_dir / COPIES_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        file.write(line)


def with_copies(receipt: ErasureReceipt, data_dir: Path) -> ErasureReceipt:
    """Return the receipt with the copies that exist and are older than the erasure, latest first."""
    latest = {copy.path: copy for copy in _read(data_dir / COPIES_FILE)}  # an export may have been replaced
    named = [
        f"{copy.kind} {copy.path} of {copy.at:%Y-%m-%d %H:%M} UTC: {_ADVICE[copy.kind]}"
        for copy in sorted(latest.values(), key=lambda copy: copy.at, reverse=True)
        if copy.at <= receipt.erased_at
        and copy.user_id in (None, SHARED_USER, receipt.user_id)
        and os.path.exists(copy.path)
    ]
    if len(named) > _MOST_NAMED:
        named[_MOST_NAMED:] = [f"{len(named) - _MOST_NAMED} older backups and exports, listed in {COPIES_FILE}"]
    named += [
        f"events in {folder}, which have no user id and wait to be sent to another daemon or with a former key; if "
        "they belong to this user, remove the folder"
        for folder in left_hook_events(data_dir)
    ]
    return msgspec.structs.replace(receipt, not_covered=(*named, *receipt.not_covered)) if named else receipt


_ADVICE = {
    "backup": "make a new backup, then delete this one (restoring it here repeats the erasure)",
    "export": "delete it",
}


def _read(file: Path) -> list[Copy]:
    """Return the recorded copies, skipping a line that a crash truncated."""
    found = []
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=described(Copy)))
        except (msgspec.DecodeError, ValueError):
            continue
    return found
