"""Continuous archiving of users' stores in a folder or an object store, and their restoration on any machine.

Read `chain` first (what is stored), then `user_archive` (writing) and `restoration`.
"""

from memory_agent.archiving.chain import Position, Restored
from memory_agent.archiving.objects import Objects, ObjectStore
from memory_agent.archiving.restoration import restore
from memory_agent.archiving.user_archive import Copy, Limits, UserArchive

__all__ = ["Copy", "Limits", "ObjectStore", "Objects", "Position", "Restored", "UserArchive", "restore"]
