"""The journal: one LMDB environment with every accepted event, the cursors of consumers, and the quarantine.

Read `journal` first, then `entries` (the stored form) and `sealing` (its encryption). The other modules implement one
operation each.
"""

from relay.journal.checkup import check_journal
from relay.journal.copies import JournalCopy
from relay.journal.encrypting import encrypt_journal
from relay.journal.file import copy_journal, cursors, read_mark, require_unused, rewind, skip_numbers
from relay.journal.journal import Appended, Journal
from relay.journal.quarantine import Suspect, publisher_of, source_name
from relay.journal.retention import RetentionReport

__all__ = [
    "Appended",
    "Journal",
    "JournalCopy",
    "RetentionReport",
    "Suspect",
    "check_journal",
    "copy_journal",
    "cursors",
    "encrypt_journal",
    "publisher_of",
    "read_mark",
    "require_unused",
    "rewind",
    "skip_numbers",
    "source_name",
]
