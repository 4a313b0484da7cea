"""Checks the parts of a data folder: a user's store and its derived files, the owners of runs, the journal.

Works beside a daemon, on one snapshot of each file. Changes nothing.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import msgspec

from memory_agent.care.derived_check import check_columns, check_learner
from memory_agent.care.records_check import RecordsCheckup
from memory_agent.errors import IndexDamagedError, StoreDamagedError
from memory_agent.knowledge.items import faults_of_items
from memory_agent.knowledge.offers import faults_of_offers
from memory_agent.knowledge.publish_log import faults_of_log
from memory_agent.settings import StoreSettings
from memory_agent.storage.array_file import read_arrays
from memory_agent.storage.derived import COLUMNS_FILE, GRAPH_FILE, ColumnsHeader, columns_cipher, read_columns
from memory_agent.storage.environment import RECORDS_FOLDER, open_environment, open_records
from memory_agent.storage.ownership import MAP_SIZE_BYTES, ORDER, PAIRS, decode_owner, owners_encryption
from memory_agent.storage.passage_vectors import graph_files
from memory_agent.storage.snapshot import RECORDS, Snapshot
from memory_agent.storage.user_key import UserKey
from memory_agent.storage.view import View
from relay import SHARED_USER, JournalSettings, check_journal
from relay.disk import DATA_FILE, Finding, Findings, Report

PAGES = f"{RECORDS_FOLDER}/{DATA_FILE}"
ITEMS = "items"
_ATTEMPTS = 3  # to read columns that their owner replaces


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
    unbuilt = () if is_copy or (folder / COLUMNS_FILE).exists() else (COLUMNS_FILE,)
    entries = 0
    try:
        with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
            entries = transaction.count(RECORDS)
            RecordsCheckup(transaction, findings, report).run()
            is_sound = not findings.listed()
            if is_sound and user_id == SHARED_USER:
                snapshot = Snapshot(transaction)
                for fault in (*faults_of_items(snapshot), *faults_of_offers(snapshot), *faults_of_log(snapshot)):
                    findings.add(ITEMS, fault)
            if is_sound and not is_copy:
                check_learner(Snapshot(transaction), folder, key, findings)
        if not is_copy and not unbuilt:
            _check_columns(folder, settings, key, findings, report, is_sound=is_sound)
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


def _check_columns(
    folder: Path, settings: StoreSettings, key: UserKey | None, findings: Findings, report: Report, *, is_sound: bool
) -> None:
    """Check the saved columns, and compare them with the records where those are sound.

    They are read before the records are opened: they may be behind the records, never ahead. They are read again if the
    owner has saved newer ones meanwhile, and forgotten the changes in between.
    """
    for attempt in range(_ATTEMPTS):
        columns = _columns(folder, key, findings)
        if columns is None or not is_sound:
            return
        with closing(open_records(folder, settings, key)) as environment, environment.read() as transaction:
            snapshot = Snapshot(transaction)
            if columns[0].applied >= snapshot.state.forgotten_through or attempt == _ATTEMPTS - 1:
                check_columns(snapshot, *columns, findings, report)
                return


def _columns(folder: Path, key: UserKey | None, findings: Findings) -> tuple[ColumnsHeader, View] | None:
    """Return the saved columns, without a graph, whose file is only compared with its checksums."""
    cipher = columns_cipher(key)
    try:
        for graph in graph_files(folder / GRAPH_FILE):
            if graph.exists():
                read_arrays(graph, dict, cipher)
    except IndexDamagedError as error:
        findings.add(GRAPH_FILE, str(error))
    try:
        header, columns = read_columns(folder, StoreSettings(exact_search_limit=sys.maxsize), cipher)
    except IndexDamagedError as error:
        findings.add(COLUMNS_FILE, str(error))
        return None
    return header, columns.view
