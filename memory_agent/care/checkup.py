"""A data folder from end to end: every user's store, what is derived from it, the journal. Changes nothing.

Works beside a daemon: each store is looked at through one snapshot of its files. What is found is named by file and
class of keys, and counted; no text, no ids.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from memory_agent.care.derived_check import check_index, check_learner, check_lexicon
from memory_agent.care.findings import Finding, Findings, Report
from memory_agent.care.owners_check import check_pairs
from memory_agent.care.records_check import RecordsCheck
from memory_agent.config import StoreSettings
from memory_agent.errors import IndexDamagedError, StoreDamagedError
from memory_agent.storage.derived import INDEX_FILE, LEXICON_FILE, index_cipher, lexicon_secret
from memory_agent.storage.environment import RECORDS_FOLDER, open_records
from memory_agent.storage.lexicon import LexiconContents, read_contents
from memory_agent.storage.snapshot import RECORDS, Snapshot
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.vector_index import VectorIndex
from relay import JournalSettings, check_journal
from relay.disk import Transaction

PAGES = f"{RECORDS_FOLDER}/data.mdb"


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a part: a user's store, the owners of runs, the journal. `entries`: memories, pairs, events.

    `unbuilt`: derived files that are not there, which is no damage: a restored store has none at first.
    """

    part: str
    entries: int
    findings: tuple[Finding, ...] = ()
    unbuilt: tuple[str, ...] = ()


def check_user(
    folder: Path,
    user_id: str,
    settings: StoreSettings,
    report: Report,
    key: UserKey | None = None,
    *,
    is_copy: bool = False,
) -> PartReport:
    """Check one user's folder; of a copy, which has no derived files, the records alone.

    Raises `StoreError` where the files cannot be read at all: also without the `key` of what is encrypted.
    """
    findings = Findings()
    # Before the snapshot: it may be behind it, never ahead.
    unbuilt = () if is_copy or (folder / LEXICON_FILE).exists() else (LEXICON_FILE,)
    words = None if is_copy or unbuilt else _look_at_words(folder / LEXICON_FILE, key, findings)
    entries = 0
    try:
        environment = open_records(folder, settings, key)
    except StoreDamagedError as error:
        findings.add(PAGES, str(error))
        return PartReport(part=f"user {user_id}", entries=0, findings=findings.listed())
    try:
        with environment.read() as transaction:
            entries = transaction.count(RECORDS)
            RecordsCheck(transaction, findings, report).run()
            if not is_copy and not _truth_is_damaged(findings):
                _check_derived(folder, transaction, words, (settings, key), findings, report)
    except StoreDamagedError as error:
        findings.add(PAGES, str(error))
    finally:
        environment.close()
    return PartReport(part=f"user {user_id}", entries=entries, findings=findings.listed(), unbuilt=unbuilt)


def check_events(folder: Path, settings: JournalSettings, report: Report) -> PartReport:
    """Check a journal."""
    findings = Findings()
    entries = check_journal(folder, settings, findings.add, report)
    return PartReport(part="journal", entries=entries, findings=findings.listed())


def check_owners(folder: Path, key: UserKey | None = None) -> PartReport:
    """Check the map of whose a run or session is. Raises `StoreError` where it, or its `key`, cannot be read at all."""
    findings = Findings()
    try:
        entries = check_pairs(folder, findings, key)
    except StoreDamagedError as error:
        findings.add("owners/data.mdb", str(error))
        entries = 0
    return PartReport(part="owners", entries=entries, findings=findings.listed())


def _truth_is_damaged(findings: Findings) -> bool:
    """Then there is nothing to hold the derived files against."""
    return any(finding.place not in (INDEX_FILE, LEXICON_FILE) for finding in findings.listed())


def _look_at_words(path: Path, key: UserKey | None, findings: Findings) -> LexiconContents | None:
    try:
        return read_contents(path, lexicon_secret(key))
    except IndexDamagedError as error:
        findings.add(LEXICON_FILE, str(error))
        return None


def _check_derived(
    folder: Path,
    transaction: Transaction,
    words: LexiconContents | None,
    form: tuple[StoreSettings, UserKey | None],
    findings: Findings,
    report: Report,
) -> None:
    snapshot, (settings, key) = Snapshot(transaction), form
    if words is not None:
        check_lexicon(snapshot, words, findings, report)
    check_learner(snapshot, folder, key, findings)
    path = folder / INDEX_FILE
    if not path.exists():
        return  # a flat table is read from the records at each open
    index = VectorIndex(snapshot.vectors, settings.exact_search_limit, settings.expansion_search)
    try:
        index.load(path, index_cipher(key))
        check_index(snapshot, index, findings, report)
    except IndexDamagedError as error:
        findings.add(INDEX_FILE, str(error))
