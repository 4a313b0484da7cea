"""Durable files: an LMDB environment with one writer, atomic file writes, checksums, and free disk space.

Read `environment` and `transaction` first, then `fence`, which determines which process may write.
"""

from relay.disk.checkup import UNREADABLE, Checkup, Finding, Findings, Report
from relay.disk.environment import Environment
from relay.disk.fence import OwnerLock, Role, WriterLock, last_epoch, opening
from relay.disk.files import (
    CHECKSUM_BYTES,
    add_checksum,
    checksum,
    discard_copy,
    flush,
    flush_tree,
    room_for_copy,
    verify_checksum,
    write_once,
    write_private,
)
from relay.disk.pages import DATA_FILE, find_fault
from relay.disk.room import free_bytes, has_room, keep_reserve, release_reserve
from relay.disk.transaction import ErrorFamily, OnCommit, Pair, StoredChange, Transaction

__all__ = [
    "CHECKSUM_BYTES",
    "DATA_FILE",
    "UNREADABLE",
    "Checkup",
    "Environment",
    "ErrorFamily",
    "Finding",
    "Findings",
    "OnCommit",
    "OwnerLock",
    "Pair",
    "Report",
    "Role",
    "StoredChange",
    "Transaction",
    "WriterLock",
    "add_checksum",
    "checksum",
    "discard_copy",
    "find_fault",
    "flush",
    "flush_tree",
    "free_bytes",
    "has_room",
    "keep_reserve",
    "last_epoch",
    "opening",
    "release_reserve",
    "room_for_copy",
    "verify_checksum",
    "write_once",
    "write_private",
]
