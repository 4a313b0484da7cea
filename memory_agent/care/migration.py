"""Move users' vectors to another index while no daemon is running: fill it, verify it, and then switch to it.

The former index stays in use until the new one is verified. A killed migration resumes at the last row that the new
index stores.

n = number of memories, q = number of queries, k = number of neighbours, d = dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.archiving import fetch_home
from memory_agent.care.checkup import OnMissingKey, skipping_without_key
from memory_agent.errors import (
    EncryptionKeyMissingError,
    IndexUnavailableError,
    IndexUnusableError,
    StoreEncryptedError,
)
from memory_agent.indexes import IndexOf, VectorIndex, open_index
from memory_agent.layout import Layout
from memory_agent.records.embedded import Embedding
from memory_agent.settings import Settings
from memory_agent.storage import index_follower
from memory_agent.storage.archive import Archive
from memory_agent.storage.environment import UserKey, has_records, open_user_key
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.store import Store
from relay.disk import Report

_SAMPLE, _NEIGHBOURS = 20, 10
_LEAST_FOUND = 0.9
"""Minimum recall of the new index on the sample, compared with an exact search."""


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """One user's vectors after a migration. `found` is the index's recall at k on the sample.

    `left` describes data that could not be removed from the former index.
    """

    user_id: str
    former: str
    engine: str
    memories: int
    found: float
    left: str = ""


def migrate_folder(
    data_dir: Path,
    settings: Settings,
    engine: str,
    report: Report,
    user_id: str | None = None,
    on_missing_key: OnMissingKey | None = None,
) -> Iterator[Migrated]:
    """Move the vectors of one user, or of all users in turn, to `engine`; repeat the call after an error.

    `on_missing_key` is as in `skipping_without_key`. Raises `DaemonRunningError`, `IndexUnavailableError`,
    `IndexUnusableError`, `SettingsError` and `StoreError`.
    """
    with Layout(data_dir).hold(serves=False):
        for one in list(known_users(data_dir)) if user_id is None else [user_id]:
            fetch_home(data_dir, settings, one)
            folder = user_folder(data_dir, one)
            if not has_records(folder):
                continue
            with skipping_without_key(on_missing_key):
                key = open_user_key(settings.encryption, data_dir, one)
                yield migrate_user(folder, one, settings, engine, report, key)


def engines_of_users(data_dir: Path, settings: Settings, users: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each user of this folder who has records and an available key, with the engine of the user's index. Raises
    `StoreError`.
    """
    for one in users:
        folder, key = user_folder(data_dir, one), None
        if has_records(folder):
            with suppress(EncryptionKeyMissingError):
                try:
                    engine = index_follower.engine_in(folder, settings.store, None)
                except StoreEncryptedError:
                    key = open_user_key(settings.encryption, data_dir, one)
                    if key is None:
                        continue
                    engine = index_follower.engine_in(folder, settings.store, key)
                yield one, engine


def migrate_user(
    folder: Path, user_id: str, settings: Settings, engine: str, report: Report, key: UserKey | None = None
) -> Migrated:
    """Fill and verify a user's index in `engine`, switch to it, and remove the old index. Idempotent."""
    found = 1.0
    with closing(Store.open(folder, settings.store, "library", key)) as store:
        of, former = (
            index_follower.with_key(IndexOf(settings.index, user_id, folder), store.key),
            index_follower.engine_of(store),
        )
        if engine != "builtin":
            index_follower.note_left(store, engine)
            with closing(index_follower.IndexFollower(store, open_index(engine, of))) as follower:
                follower.fill(partial(report, user_id))
                try:
                    with store.snapshot() as snapshot:
                        found = verified(follower.index, snapshot)
                except IndexUnusableError:
                    follower.index.clear()  # the next migration fills it again
                    raise
        index_follower.name_engine(store, engine)
        left = ""
        try:
            index_follower.remove_left(store, of)
        except (IndexUnavailableError, IndexUnusableError) as error:
            left = f"vectors of {user_id} may remain ({error}); opening the memory again removes them"
        memories = store.counts().memories
    with closing(Archive.open(folder, settings.store, "library", key, index=of)) as archive:
        # opening removes the files of the former index
        archive.settled_view()  # waits for the rebuilt columns, which contain vectors only if the index is built-in
    return Migrated(user_id=user_id, former=former, engine=engine, memories=memories, found=round(found, 3), left=left)


def verified(index: VectorIndex, snapshot: Snapshot) -> float:
    """Return the recall at k of an index on a sample of stored vectors, compared with an exact search.

    Raises `IndexUnusableError` if the recall is too low, or if the number of memories is wrong.
    """
    expected, counted = snapshot.counts().vectors, index.count()
    if counted != expected:
        raise _refused(index, f"it contains vectors of {counted} memories instead of {expected}")
    if not expected:
        return 1.0
    queries = _sample(snapshot, expected)
    nearest = _nearest(snapshot, queries)
    shares = []
    for query, exact in zip(queries, nearest, strict=True):
        rows = list(dict.fromkeys(index.search(query, 4 * _NEIGHBOURS).rows.tolist()))[:_NEIGHBOURS]
        shares.append(len(set(rows) & set(exact)) / len(exact))
    found = float(np.mean(shares))
    if found < _LEAST_FOUND:
        raise _refused(index, f"it finds only {found:.0%} of the memories nearest to sample queries")
    return found


def _refused(index: VectorIndex, reason: str) -> IndexUnusableError:
    return IndexUnusableError(index.name, reason, "the former index stays in use; retry, or choose another index")


def _sample(snapshot: Snapshot, count: int) -> Embedding:
    """Return the vectors (q, d) of memories spread evenly over the store."""
    chosen = set(np.linspace(0, count - 1, min(_SAMPLE, count)).round().astype(int).tolist())
    found, seen = [], 0
    for _, vectors in snapshot.scan_vectors():
        found += [vectors[place - seen] for place in sorted(chosen) if seen <= place < seen + len(vectors)]
        seen += len(vectors)
    return np.stack(found)


def _nearest(snapshot: Snapshot, queries: Embedding) -> list[list[int]]:
    """Return the rows of the k memories nearest to each query, by their best passages."""
    rows: list[int] = []
    parts: list[npt.NDArray[np.float32]] = []
    for some, vectors in snapshot.scan_vectors():
        cosines = queries @ vectors.T
        for place, row in enumerate(some.tolist()):
            further = snapshot.passages(row)
            if further is not None:
                cosines[:, place] = np.maximum(cosines[:, place], (queries @ further[1].T).max(axis=1))
        rows += some.tolist()
        parts.append(cosines)
    order = np.argsort(-np.concatenate(parts, axis=1), axis=1, kind="stable")[:, :_NEIGHBOURS]
    return [[rows[place] for place in places] for places in order.tolist()]
