"""Keeps the columns in sync with the store: loads them from their file, applies the change log, and saves them.

The file is only a cache. Columns are rebuilt from the store if they are missing or damaged, belong to a different
store, embedder or version, or are too old for the change log. Only damage to the store itself is an error.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt

from memory_agent.errors import IndexDamagedError
from memory_agent.settings import StoreSettings
from memory_agent.storage.array_file import read_arrays, write_arrays
from memory_agent.storage.column import Arrays, GraphWriter, section
from memory_agent.storage.columns import Columns
from memory_agent.storage.environment import UserKey
from memory_agent.storage.indexed_vectors import IndexedVectors, Source
from memory_agent.storage.passages import PassageVectors, graph_files
from memory_agent.storage.postings import Postings
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.store import Store
from memory_agent.storage.terms import TERMS_VERSION
from memory_agent.storage.vector_table import VectorTable
from relay.crypto import Cipher

COLUMNS_FILE = "columns.arrays"
GRAPH_FILE = "graph.arrays"

_VERSION = f"4, {TERMS_VERSION}"  # if the stored words were split or stemmed differently, recall could not find them
_OBSOLETE = ("index.usearch*", "lexicon.sqlite*", "*.arrays.new")  # files of version 0.1.0, or left by a killed process
AT_ONCE = 2_000  # maximum number of changes applied, or memories read, without a background thread


class ColumnsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The version of the file, and the state of the store when it was saved."""

    version: str
    lineage: str
    stamp: str
    applied: int
    built_at: datetime | None = None


class Saving(NamedTuple):
    header: ColumnsHeader
    arrays: Arrays
    write_graph: GraphWriter


def columns_cipher(key: UserKey | None) -> Cipher | None:
    """Return the cipher for a user's derived files. Raises `EncryptionKeyMissingError`."""
    return None if key is None else key.cipher("columns")


def empty_columns(settings: StoreSettings, source: Source | None = None) -> Columns:
    """Return empty columns. With a `source`, the vectors are in another engine."""
    first, further = (VectorTable(settings.exact_search_limit, settings.expansion_search) for _ in range(2))
    vectors = PassageVectors(first, further) if source is None else IndexedVectors(source)
    columns = Columns(vectors, Postings())
    columns.built_at = datetime.now(UTC)
    return columns


def read_columns(
    folder: Path, settings: StoreSettings, cipher: Cipher | None, source: Source | None = None
) -> tuple[ColumnsHeader, Columns]:
    """Return the columns in a user's folder, with the header that names their store. `source` is as in `empty_columns`.

    Planes that every scan reads in full are copied into private memory, which makes recall a fifth faster. Raises
    `IndexDamagedError` if the file is missing, damaged, or from a different version.
    """

    def is_scanned(name: str, array: npt.NDArray[Any]) -> bool:
        return name.endswith(".coarse") and array.ndim == 2 and len(array) <= settings.exact_search_limit

    header, arrays = read_arrays(folder / COLUMNS_FILE, ColumnsHeader, cipher, is_scanned)
    if header.version != _version(source):
        raise IndexDamagedError(f"{COLUMNS_FILE}: has version {header.version}, expected {_version(source)}")
    saved = section(arrays, "vectors")
    vectors: PassageVectors | IndexedVectors
    if source is None:
        first, further = (
            VectorTable.from_arrays(section(saved, part), settings.exact_search_limit, settings.expansion_search)
            for part in ("first", "further")
        )
        vectors = PassageVectors.from_arrays(saved, first, further)
        vectors.load_graph(folder / GRAPH_FILE, cipher)
    else:
        vectors = IndexedVectors.from_arrays(saved, source)
    words = Postings.from_arrays(section(arrays, "words"))
    columns = Columns.from_arrays(arrays, vectors, words, header.applied, header.stamp)
    columns.built_at = header.built_at
    return header, columns


def load_columns(store: Store, settings: StoreSettings, source: Source | None = None) -> Columns:
    """Return the saved columns of a store, or empty columns if they cannot be used."""
    with suppress(IndexDamagedError):
        header, columns = read_columns(store.folder, settings, columns_cipher(store.key), source)
        vectors, state = columns.view.vectors, store.state
        is_of_embedder = header.stamp == (state.stamp or "") and vectors.ndim == state.ndim
        if header.lineage == state.lineage and (is_of_embedder or not vectors.count):
            return columns
        columns.close()
    return empty_columns(settings, source)


def is_short(snapshot: Snapshot, columns: Columns) -> bool:
    """Whether `follow`, or a rebuild, is short enough to run without a background thread."""
    behind = snapshot.state.last_change - columns.applied
    can_follow = columns.applied >= snapshot.state.forgotten_through
    return behind <= AT_ONCE if can_follow else snapshot.counts().memories <= AT_ONCE


def follow(snapshot: Snapshot, columns: Columns) -> bool:
    """Apply missing changes to the columns; return False if they must be rebuilt instead."""
    changes = snapshot.changes_after(columns.applied)
    if changes is None:
        return False
    try:
        columns.apply(changes)
    except IndexDamagedError:
        return False
    return True


def capture(store: Store, columns: Columns) -> Saving:
    """Return the current content of the columns, in a form that can be written while they change."""
    header = ColumnsHeader(
        version=_version(columns.vectors.source),
        lineage=store.state.lineage,
        stamp=columns.stamp,
        applied=columns.applied,
        built_at=columns.built_at,
    )
    return Saving(header, columns.arrays(), columns.vectors.graph_writer())


def write(store: Store, saving: Saving) -> None:
    """Replace the files. On an `OSError`, the old files remain."""
    cipher = columns_cipher(store.key)
    write_arrays(store.folder / COLUMNS_FILE, saving.header, saving.arrays, cipher)
    saving.write_graph(store.folder / GRAPH_FILE, cipher)


def derived_files(folder: Path) -> tuple[Path, ...]:
    """Return the paths of the derived files in a user's folder."""
    return (folder / COLUMNS_FILE, *graph_files(folder / GRAPH_FILE))


def remove_files(folder: Path) -> None:
    """Remove all derived files from a user's folder. None may be open. Raises `OSError`."""
    remove_obsolete(folder)
    remove_set_aside(folder)
    remove_indexes(folder)
    for path in derived_files(folder):
        path.unlink(missing_ok=True)


def remove_indexes(folder: Path, kept: str = "") -> None:
    """Remove the files of indexes in other engines, except those of the engine `kept`."""
    for path in folder.glob("index.sqlite*") if kept != "sqlite-vec" else ():
        path.unlink(missing_ok=True)
    for path in folder.glob("index.lance") if kept != "lancedb" else ():
        shutil.rmtree(path, ignore_errors=True)


def remove_obsolete(folder: Path) -> None:
    """Remove unfinished files and files from earlier versions. Raises `OSError`."""
    for pattern in _OBSOLETE:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def remove_set_aside(folder: Path) -> None:
    """Remove files that were set aside as damaged. Raises `OSError`."""
    for path in folder.glob("*.damaged"):
        path.unlink(missing_ok=True)


def _version(source: Source | None) -> str:
    return _VERSION if source is None else f"{_VERSION}, index"
