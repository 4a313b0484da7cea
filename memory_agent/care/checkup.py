"""Checks the parts of a data folder: a user's store and its derived files, the owners of runs, the journal.

Works beside a daemon, on one snapshot of each file. Changes nothing.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from memory_agent.care.derived_check import check_index, check_learner, check_lexicon
from memory_agent.care.records_check import RecordsCheckup
from memory_agent.errors import IndexDamagedError, StoreDamagedError
from memory_agent.settings import StoreSettings
from memory_agent.storage.derived import INDEX_FILE, LEXICON_FILE, index_cipher, lexicon_secret
from memory_agent.storage.environment import RECORDS_FOLDER, open_environment, open_records
from memory_agent.storage.lexicon import LexiconContents, read_contents
from memory_agent.storage.ownership import MAP_SIZE_BYTES, ORDER, PAIRS, decode_owner, owners_encryption
from memory_agent.storage.snapshot import RECORDS, Snapshot
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.vector_index import VectorIndex
from relay import JournalSettings, check_journal
from relay.disk import DATA_FILE, Finding, Findings, Report, Transaction

PAGES = f"{RECORDS_FOLDER}/{DATA_FILE}"


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings in one part. `entries` counts its memories, pairs or events.

    `unbuilt` names derived files that do not exist, which is not a fault: a restored store has none at first.
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
    """Check a user's folder; of a copy, which has no derived files, only the records.

    Raises `StoreError` if the files cannot be read at all, such as encrypted ones without their `key`.
    """
    findings = Findings()
    # Read the lexicon before the snapshot begins: it may be behind the records, never ahead.
    unbuilt = () if is_copy or (folder / LEXICON_FILE).exists() else (LEXICON_FILE,)
    words = None if is_copy or unbuilt else _words(folder / LEXICON_FILE, key, findings)
    entries = 0
    try:
        with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
            entries = transaction.count(RECORDS)
            RecordsCheckup(transaction, findings, report).run()
            if not is_copy and not _records_are_damaged(findings):
                _check_derived(folder, transaction, words, (settings, key), findings, report)
    except StoreDamagedError as error:
        findings.add(PAGES, str(error))
    return PartReport(part=f"user {user_id}", entries=entries, findings=findings.listed(), unbuilt=unbuilt)


def check_events(folder: Path, settings: JournalSettings, report: Report) -> PartReport:
    """Check a journal. Raises `JournalError` where it cannot be read at all."""
    findings = Findings()
    entries = check_journal(folder, settings, findings, report)
    return PartReport(part="journal", entries=entries, findings=findings.listed())


def check_owners(folder: Path, key: UserKey | None = None) -> PartReport:
    """Check the owners of runs and sessions, encrypted with the system's `key`.

    Raises `StoreError` where they cannot be read at all.
    """
    findings = Findings()
    entries = 0
    encryption = owners_encryption(key)
    try:
        environment = open_environment(folder, MAP_SIZE_BYTES, (PAIRS, ORDER), readonly=True, encryption=encryption)
        with closing(environment), environment.read() as transaction:
            pairs = dict(transaction.scan(PAIRS))
            ordered = {key for _, key in transaction.scan(ORDER)}
            entries = len(pairs)
        damaged = sum(decode_owner(key, value) is None for key, value in pairs.items())
        findings.add(PAIRS, "do not match their checksum", damaged)
        findings.add(ORDER, "does not hold each pair once", len(ordered ^ set(pairs)))
    except StoreDamagedError as error:
        findings.add(f"owners/{DATA_FILE}", str(error))
    return PartReport(part="owners", entries=entries, findings=findings.listed())


def _records_are_damaged(findings: Findings) -> bool:
    """Whether the records have faults, so that the derived files cannot be compared with them."""
    return any(finding.place not in (INDEX_FILE, LEXICON_FILE) for finding in findings.listed())


def _words(path: Path, key: UserKey | None, findings: Findings) -> LexiconContents | None:
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
