"""Open an index by the name of its engine. The module of an engine is imported when its first index is opened."""

from __future__ import annotations

import importlib
from typing import Any, Final

from memory_agent.errors import IndexUnusableError, SettingsError
from memory_agent.indexes.contract import IndexOf, VectorIndex
from memory_agent.settings import IndexSettings

SHARED: Final = "pgvector"  # several users and machines share its database; other engines use the user's folder

_MODULES: Final = {
    "sqlite-vec": ("memory_agent.indexes.sqlite_vec", "SqliteVecIndex", "sqlite-vec sqlcipher3"),
    SHARED: ("memory_agent.indexes.pgvector", "PgvectorIndex", "'psycopg[binary]'"),
    "lancedb": ("memory_agent.indexes.lancedb", "LanceIndex", "lancedb pyarrow"),
}


def open_index(engine: str, of: IndexOf) -> VectorIndex:
    """Open a user's index. The index connects on its first call, so that call fails if the database is unreachable.

    Raises `SettingsError` if the settings contradict each other, and `IndexUnusableError` if the engine is not
    installed.
    """
    if engine not in _MODULES:
        raise SettingsError("index.engine", f"{engine} is not an index; choose builtin, {', '.join(_MODULES)}")
    if engine == SHARED and not of.settings.url:
        advice = "set it, or run: memory-agent migrate --to builtin"
        raise SettingsError("index.url", f"is empty, but the vectors of {of.user_id} are in pgvector; {advice}")
    if of.secret is not None and not encrypts(engine) and not of.settings.allow_plain:
        reason = f"{engine} would store vectors unencrypted, but encryption.keys_folder is set; texts can be guessed"
        advice = "from vectors. Choose sqlite-vec or builtin, or set index.allow_plain"
        raise SettingsError("index.engine", f"{reason} {advice}")
    opened: VectorIndex = getattr(_module(engine), _MODULES[engine][1])(of)
    return opened


def encrypts(engine: str) -> bool:
    """Whether an engine encrypts its vectors if the user's store is encrypted."""
    return engine in ("builtin", "sqlite-vec")


def forget_user(settings: IndexSettings, user_id: str) -> None:
    """If the settings name a database that several users share, remove a user's vectors from it.

    Raises `IndexUnavailableError` and `IndexUnusableError`.
    """
    if settings.url:
        _module(SHARED).forget_user(settings, user_id)


def users_in_database(settings: IndexSettings) -> list[str]:
    """Return the users whose vectors are in the shared database. Raises the same errors as `forget_user`."""
    found: list[str] = _module(SHARED).users(settings) if settings.url else []
    return found


def _module(engine: str) -> Any:
    try:
        return importlib.import_module(_MODULES[engine][0])
    except ImportError as error:
        reason = f"a package is not installed ({error.name})"
        raise IndexUnusableError(engine, reason, f"pip install {_MODULES[engine][2]}") from error
