"""Checks the files of the vector index, the lexicon and the learner against the records.

Each file may be behind, by changes that the change log still holds; rows that changed since are skipped. A fault here
loses no memory: the file is rebuilt from the records at the next open, or now by `memory-agent rebuild`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from memory_agent.errors import IndexDamagedError, StoreDamagedError
from memory_agent.learning.learner_file import LEARNER_FILE, look_at_learner
from memory_agent.records import Embedding
from memory_agent.storage.derived import INDEX_FILE, LEXICON_FILE
from memory_agent.storage.lexicon import LexiconContents
from memory_agent.storage.lexicon_schema import record_fingerprint
from memory_agent.storage.snapshot import Snapshot
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.vector_index import VectorIndex
from relay.disk import Findings, Report
from sona.errors import DamagedStateError

_LEAST_COSINE = 0.99  # of a vector and its int8 form; .9995 and more is usual
_STEP = 1_000

_BEHIND = "is further behind than the change log reaches"


def check_index(snapshot: Snapshot, index: VectorIndex, findings: Findings, report: Report) -> None:
    """Compare a vector index loaded from its file with the vectors of the store."""
    if not _is_of_store(snapshot, index.lineage, INDEX_FILE, findings):
        return
    changed = _changed_since(snapshot, index.applied)
    if not findings.require(changed is not None, INDEX_FILE, _BEHIND) or changed is None:
        return
    if not findings.require(index.stamp == (snapshot.state.stamp or ""), INDEX_FILE, "is of another embedder"):
        return
    expected = {int(row) for rows, _ in snapshot.scan_vectors() for row in rows} - changed
    total = len(index)
    for done, (rows, vectors) in enumerate(index.held()):
        report(INDEX_FILE, done * _STEP, total)
        known = np.array([int(row) in expected for row in rows])
        strange = sum(int(row) not in changed for row in rows[~known])
        findings.add(INDEX_FILE, "holds a row that has no vector", strange)
        cosines = _cosines(vectors[known], snapshot.vectors(rows[known]))
        findings.add(INDEX_FILE, "holds another vector than the records", int((cosines < _LEAST_COSINE).sum()))
        expected -= set(rows.tolist())
    findings.add(INDEX_FILE, "lacks a row", len(expected))
    report(INDEX_FILE, total, total)


def check_lexicon(snapshot: Snapshot, held: LexiconContents, findings: Findings, report: Report) -> None:
    """Compare the lexicon's rows, and what they say, with the records."""
    if not _is_of_store(snapshot, held.lineage, LEXICON_FILE, findings):
        return
    changed = _changed_since(snapshot, held.applied)
    if not findings.require(changed is not None, LEXICON_FILE, _BEHIND) or changed is None:
        return
    rows, total = set(), snapshot.counts()[0]
    for done, (row, record) in enumerate(snapshot.scan()):
        if done % _STEP == 0:
            report(LEXICON_FILE, done, total)
        rows.add(row)
        if row in changed:
            continue
        if findings.require(row in held.fingerprints, LEXICON_FILE, "lacks a row"):
            says_so = held.fingerprints[row] == record_fingerprint(record)
            findings.require(says_so, LEXICON_FILE, "holds other words than the records")
        findings.require(row in held.worded, LEXICON_FILE, "lacks the words of a row")
    strange = (held.fingerprints.keys() | held.worded) - rows - changed
    findings.add(LEXICON_FILE, "holds a row that is not a record", len(strange))
    report(LEXICON_FILE, total, total)


def check_learner(snapshot: Snapshot, folder: Path, key: UserKey | None, findings: Findings) -> None:
    """Check the checksum of the saved learner, and that it belongs to this store. It may be older than the records."""
    try:
        lineage = look_at_learner(folder, key)
    except DamagedStateError as error:
        findings.add(LEARNER_FILE, str(error))
        return
    if lineage is not None:
        _is_of_store(snapshot, lineage, LEARNER_FILE, findings)


def _is_of_store(snapshot: Snapshot, lineage: str, place: str, findings: Findings) -> bool:
    return findings.require(lineage == snapshot.state.lineage, place, "is of another store")


def _changed_since(snapshot: Snapshot, applied: int) -> set[int] | None:
    changes = snapshot.changes_after(applied)
    try:
        return None if changes is None else {change.row for change in changes.rows}
    except (StoreDamagedError, IndexDamagedError):
        return None


def _cosines(ours: Embedding, theirs: Embedding) -> Embedding:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Embedding = np.nan_to_num(np.einsum("ij,ij->i", ours, theirs) / lengths)
    return cosines
