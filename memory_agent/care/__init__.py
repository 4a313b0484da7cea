"""Maintenance of a data folder: verify, back up, restore, encrypt, migrate, export, and erase without a daemon.

Read `checkup` first. Importing this package also imports usearch, so the command line imports it only inside functions.
"""

from __future__ import annotations

from memory_agent.care.backup import MANIFEST_FILE, Part, make_backup, read_manifest, verify_manifest
from memory_agent.care.checkup import (
    OnMissingKey,
    PartReport,
    RecordsCheckup,
    check_events,
    check_owners,
    check_user,
    verify_folder,
)
from memory_agent.care.encryption import (
    DestroyedKey,
    destroy_user_key,
    encrypt_folder,
    encrypt_user,
    store_encryptions,
)
from memory_agent.care.export import Imported, export_lines, export_user, import_lines, import_user, write_file
from memory_agent.care.migration import engines_of_users, migrate_folder
from memory_agent.care.offline import (
    compact_journal,
    erase,
    erase_user,
    forgotten_events,
    open_for_reading,
    open_memory,
    read_quarantine,
    shared_items,
)
from memory_agent.care.restoration import (
    NOT_IN_JOURNAL,
    Restored,
    replay_user,
    restore_all,
    restore_archived_journal,
    restore_user,
    take_users,
)

__all__ = [
    "MANIFEST_FILE",
    "NOT_IN_JOURNAL",
    "DestroyedKey",
    "Imported",
    "OnMissingKey",
    "Part",
    "PartReport",
    "RecordsCheckup",
    "Restored",
    "check_events",
    "check_owners",
    "check_user",
    "compact_journal",
    "destroy_user_key",
    "encrypt_folder",
    "encrypt_user",
    "engines_of_users",
    "erase",
    "erase_user",
    "export_lines",
    "export_user",
    "forgotten_events",
    "import_lines",
    "import_user",
    "make_backup",
    "migrate_folder",
    "open_for_reading",
    "open_memory",
    "read_manifest",
    "read_quarantine",
    "replay_user",
    "restore_all",
    "restore_archived_journal",
    "restore_user",
    "shared_items",
    "store_encryptions",
    "take_users",
    "verify_folder",
    "verify_manifest",
    "write_file",
]
