"""Keeps the vector index and the lexicon in step with the store: opens, updates and rebuilds them.

Neither is needed for recovery, and neither is trusted: an index that is missing, damaged, of another store or embedder,
or further behind than the change log reaches is rebuilt from the store. Only damage of the store itself is an error.
All functions are idempotent.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from memory_agent.errors import IndexDamagedError, StoreFullError
from memory_agent.settings import StoreSettings
from memory_agent.storage.changes import Changes
from memory_agent.storage.lexicon import Lexicon
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.store import Store
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.vector_index import VectorIndex
from relay.crypto import Cipher

INDEX_FILE = "index.usearch"
LEXICON_FILE = "lexicon.sqlite"
_FOLLOWED_AT_ONCE = 1_000  # changes: .3 s of a graph
_BUILT_AT_ONCE = 2_000  # memories: .2 s of a lexicon
_SAVE_EVERY = 10_000  # changes; saving 100,000 vectors takes .2 s


def index_cipher(key: UserKey | None) -> Cipher | None:
    """Return the cipher of a user's vector index file. Raises `EncryptionKeyMissingError`."""
    return None if key is None else key.cipher("index")


def lexicon_secret(key: UserKey | None) -> bytes | None:
    """Return the secret of a user's lexicon file. Raises `EncryptionKeyMissingError`."""
    return None if key is None else key.cipher("lexicon").file_key


def open_index(store: Store, settings: StoreSettings) -> VectorIndex:
    """Return the vector index of a store, up to date."""
    index, is_ready = begin_index(store, settings)
    if not is_ready:
        catch_up_index(store, index)
    return index


def begin_index(store: Store, settings: StoreSettings) -> tuple[VectorIndex, bool]:
    """Return the vector index and whether it is up to date; building a graph is left to `catch_up_index`."""
    index = VectorIndex(store.vectors, settings.exact_search_limit, settings.expansion_search)
    with suppress(IndexDamagedError):
        index.load(_index_path(store), index_cipher(store.key))
    with store.snapshot() as snapshot:
        if _is_close(snapshot, index) and _index_follows(snapshot, index):
            return index, True
        if snapshot.counts()[1] > settings.exact_search_limit:
            return index, False
        _rebuild_index(snapshot, index)
    return index, True


def open_lexicon(store: Store) -> Lexicon:
    """Return the lexicon of a store, up to date. A damaged file is set aside."""
    lexicon, is_ready = begin_lexicon(store)
    if not is_ready:
        catch_up_lexicon(store, lexicon)
    return lexicon


def begin_lexicon(store: Store) -> tuple[Lexicon, bool]:
    """Return the lexicon and whether it is up to date. A damaged file is set aside.

    A long build, or one on a full disk, is left to `catch_up_lexicon`.
    """
    path, secret = store.folder / LEXICON_FILE, lexicon_secret(store.key)
    lexicon = Lexicon(path, secret)
    try:
        try:
            lexicon = Lexicon.open(path, secret)
        except IndexDamagedError:
            lexicon.reset()
        with store.snapshot() as snapshot:
            if _is_close(snapshot, lexicon) and _lexicon_follows(snapshot, lexicon):
                return lexicon, True
            if snapshot.counts()[0] > _BUILT_AT_ONCE:
                return lexicon, False
            _rebuild_lexicon(snapshot, lexicon)
    except StoreFullError:
        return lexicon, False
    return lexicon, True


def catch_up(store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
    """Bring both to the store's last change, also after an `IndexDamagedError` from either."""
    catch_up_index(store, index)
    catch_up_lexicon(store, lexicon)


def catch_up_index(store: Store, index: VectorIndex) -> None:
    """Bring the vector index to the store's last change, from the change log where that reaches."""
    with store.snapshot() as snapshot:
        if not _index_follows(snapshot, index):
            _rebuild_index(snapshot, index)


def catch_up_lexicon(store: Store, lexicon: Lexicon) -> None:
    """Bring the lexicon to the store's last change, from the change log where that reaches."""
    with store.snapshot() as snapshot:
        if not _lexicon_follows(snapshot, lexicon):
            _rebuild_lexicon(snapshot, lexicon)


def repair_lexicon(store: Store, lexicon: Lexicon) -> None:
    """Rebuild a lexicon that a search found damaged; the file is set aside."""
    lexicon.reset()
    catch_up_lexicon(store, lexicon)


def apply(store: Store, index: VectorIndex, lexicon: Lexicon, changes: Changes) -> None:
    """Apply a committed batch to both; an index that cannot follow is caught up."""
    apply_to_index(store, index, changes)
    apply_to_lexicon(store, lexicon, changes)


def apply_to_index(store: Store, index: VectorIndex, changes: Changes) -> None:
    """Apply a committed batch to the vector index, or catch up where it does not fit."""
    try:
        index.apply(changes)
        index.stamp = store.stamp or ""
    except IndexDamagedError:
        catch_up_index(store, index)


def apply_to_lexicon(store: Store, lexicon: Lexicon, changes: Changes) -> None:
    """Apply a committed batch to the lexicon, or catch up where it does not fit."""
    try:
        lexicon.apply(changes)
    except IndexDamagedError:
        catch_up_lexicon(store, lexicon)


def save(store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
    """Save the graph and drop the applied part of the change log.

    A flat table is read from the store at open, and the lexicon is its own file. An `OSError` leaves the old file and
    the whole change log.
    """
    index.save(_index_path(store), index_cipher(store.key))
    followed = min(index.applied, lexicon.applied)
    if followed > store.last_change - store.log_length:
        store.forget_changes_through(followed)


def rebuild(store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
    """Rebuild both from the records and save them, so that no deleted memory is left in their files.

    A flat table has no file and holds no deleted memory.
    """
    with store.snapshot() as snapshot:
        if index.is_approximate:
            _rebuild_index(snapshot, index)
        else:
            _index_follows(snapshot, index)
        _rebuild_lexicon(snapshot, lexicon)
    save(store, index, lexicon)


def remove_files(folder: Path) -> None:
    """Remove all derived files of a user's folder, also those set aside; none may be open. Raises `OSError`."""
    for name in (INDEX_FILE, LEXICON_FILE):
        for path in folder.glob(f"{name}*"):
            path.unlink(missing_ok=True)


def remove_set_aside(store: Store) -> None:
    """Remove derived files that were set aside as damaged. Raises `OSError`."""
    for path in store.folder.glob("*.damaged"):
        path.unlink(missing_ok=True)


def save_if_due(store: Store, index: VectorIndex, lexicon: Lexicon) -> None:
    """Save when the change log has grown long; to be called after batches."""
    if store.log_length >= _SAVE_EVERY:
        save(store, index, lexicon)


def _is_close(snapshot: Snapshot, side: VectorIndex | Lexicon) -> bool:
    """Whether applying a few changes brings the index up to date."""
    return side.lineage == snapshot.state.lineage and snapshot.state.last_change - side.applied <= _FOLLOWED_AT_ONCE


def _index_follows(snapshot: Snapshot, index: VectorIndex) -> bool:
    if index.lineage != snapshot.state.lineage or not _is_of_embedder(snapshot, index):
        return False
    changes = snapshot.changes_after(index.applied)
    if changes is None:
        return False
    try:
        index.apply(changes)
    except IndexDamagedError:
        return False
    return True


def _is_of_embedder(snapshot: Snapshot, index: VectorIndex) -> bool:
    state = snapshot.state
    return not len(index) or (index.stamp == (state.stamp or "") and index.ndim == state.ndim)


def _rebuild_index(snapshot: Snapshot, index: VectorIndex) -> None:
    state, (_, count, _) = snapshot.state, snapshot.counts()
    index.rebuild(
        snapshot.scan_vectors(), count, through=state.last_change, stamp=state.stamp or "", lineage=state.lineage
    )


def _lexicon_follows(snapshot: Snapshot, lexicon: Lexicon) -> bool:
    if lexicon.lineage != snapshot.state.lineage:
        return False
    changes = snapshot.changes_after(lexicon.applied)
    if changes is None:
        return False
    try:
        lexicon.apply(changes)
    except IndexDamagedError:
        lexicon.reset()
        return False
    return True


def _rebuild_lexicon(snapshot: Snapshot, lexicon: Lexicon) -> None:
    lexicon.rebuild(snapshot.scan(), through=snapshot.state.last_change, lineage=snapshot.state.lineage)


def _index_path(store: Store) -> Path:
    return store.folder / INDEX_FILE
