"""Durable files: one LMDB environment, files written atomically, checksums, and room on the disk."""

from relay.disk.atomic_files import (
    discard_copy,
    flush,
    flush_copy,
    flush_tree,
    make_first_file,
    replace_by_copy,
    room_for_copy,
    write_once,
    write_private,
)
from relay.disk.checksums import CHECKSUM_BYTES, add_checksum, checksum, verify_checksum
from relay.disk.environment import Environment, Transaction, take_lock
from relay.disk.pages import DATA_FILE, CommitGoneError, examine, find_fault
from relay.disk.room import free_bytes, has_room, means_no_room, says_no_room

__all__ = [
    "CHECKSUM_BYTES",
    "DATA_FILE",
    "CommitGoneError",
    "Environment",
    "Transaction",
    "add_checksum",
    "checksum",
    "discard_copy",
    "examine",
    "find_fault",
    "flush",
    "flush_copy",
    "flush_tree",
    "free_bytes",
    "has_room",
    "make_first_file",
    "means_no_room",
    "replace_by_copy",
    "room_for_copy",
    "says_no_room",
    "take_lock",
    "verify_checksum",
    "write_once",
    "write_private",
]
