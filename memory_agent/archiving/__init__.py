"""Continuous archiving of users' stores to a folder or an object store, and their restoration on any machine.

Read `chain` first (what is stored), then `user_archive` (writing), `restoration`, and `user_files` (writing and
restoring on a node of a cluster). `placements` records the node of each user. `archived_journal` archives the relay's
journal.
"""

from memory_agent.archiving.archived_journal import archived_journal, restore_journal
from memory_agent.archiving.chain import Restored
from memory_agent.archiving.objects import Objects, ObjectStore
from memory_agent.archiving.placements import Placements, is_away, read_placement
from memory_agent.archiving.restoration import restore
from memory_agent.archiving.user_archive import Limits, UserArchive
from memory_agent.archiving.user_files import (
    UserFiles,
    copy_archived,
    copy_records,
    current_files,
    fetch_home,
    forget_archive,
    remove_copies,
)

__all__ = [
    "Limits",
    "ObjectStore",
    "Objects",
    "Placements",
    "Restored",
    "UserArchive",
    "UserFiles",
    "archived_journal",
    "copy_archived",
    "copy_records",
    "current_files",
    "fetch_home",
    "forget_archive",
    "is_away",
    "read_placement",
    "remove_copies",
    "restore",
    "restore_journal",
]
