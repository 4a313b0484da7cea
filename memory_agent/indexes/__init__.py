"""Vector indexes outside the process's memory: sqlite-vec, pgvector and LanceDB, behind one contract.

Read `contract` first. Each engine is imported by one file, and only when the engine contains a user's vectors. The
records in LMDB are authoritative: an index is derived from them, and is rebuilt after a loss
(`storage/index_follower`). The built-in index is `storage/vector_table`.
"""

from __future__ import annotations

from memory_agent.indexes.contract import (
    COLUMNS,
    EVERYTHING,
    Entry,
    Hits,
    IndexOf,
    Position,
    VectorIndex,
    Where,
)
from memory_agent.indexes.engines import SHARED, encrypts, forget_user, open_index, users_in_database

__all__ = [
    "COLUMNS",
    "EVERYTHING",
    "SHARED",
    "Entry",
    "Hits",
    "IndexOf",
    "Position",
    "VectorIndex",
    "Where",
    "encrypts",
    "forget_user",
    "open_index",
    "users_in_database",
]
