"""Work on a data folder without a daemon: open a user's memory, erase data, read the quarantine, compact the journal.

A running daemon does the same through its hosts and its relay (`daemon.erasure`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec

from memory_agent.archiving import archived_journal, fetch_home
from memory_agent.embedders import Embedder
from memory_agent.erasure import request
from memory_agent.erasure.copies import with_copies
from memory_agent.erasure.hook_events import erase_hook_events
from memory_agent.erasure.logs import History, fingerprint, read_history
from memory_agent.erasure.request import ErasureReceipt, Intent, Selection
from memory_agent.erasure.user_removal import erase_user_files, moved_aside_reason, note_absent_user_erased
from memory_agent.errors import (
    EncryptionKeyMissingError,
    StoreDamagedError,
    StoreError,
    StoreOwnedElsewhereError,
)
from memory_agent.knowledge import Knowledge, KnowledgeOnFiles
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.records.shared_requests import Caller, ForgetUser, ReadLog, SharedPart, SharedStore
from memory_agent.settings import RetentionSettings, Settings
from memory_agent.storage.environment import open_user_key
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners, is_named, keys_of, quarantined_traces
from memory_agent.verbs.protocol import DEFAULT_USER, QuarantinedEvent
from relay import (
    LOCAL,
    SHARED_USER,
    SYSTEM_USER,
    EncryptionSettings,
    Erasable,
    Erased,
    Journal,
    JournalEntry,
    JournalError,
    Origin,
    check_events,
    journal_folder,
    open_key_ring,
    read_event,
)

Warn = Callable[[str], None]
"""Called with a one-sentence warning if an operation continues despite a problem."""

IsOwned = Callable[[bytes], bool]
"""Whether an encoded event of `system` belongs to the user."""

_PAGE = 500
_SHARED_TIMEOUT_S = 10.0
_Kind = TypeVar("_Kind", bound=Memory)


def open_memory(
    data_dir: Path,
    settings: Settings,
    user_id: str,
    retention: RetentionSettings | None = None,
    shared: SharedStore | None = None,
) -> Memory:
    """Open a user's memory from its files, creating it if it does not exist.

    Finishes an interrupted restore. If the user is on another node of a cluster, fetches the user's files from the
    archive. Does not apply retention rules: `retention` only makes them available to `Memory.erasure`. Raises
    `DaemonRunningError` and the errors of `Memory.open`.
    """
    folder = _prepared(data_dir, settings, user_id)
    kind = Knowledge if user_id == SHARED_USER else Memory
    return _open(kind, folder, settings, user_id, retention=retention, shared=shared)


@contextmanager
def open_for_reading(
    data_dir: Path, settings: Settings, user_id: str, shared: SharedStore | None = None
) -> Iterator[Memory]:
    """Like `open_memory`, but yield an empty memory for a user without a store, and create no files or keys."""
    open_user_key(settings.encryption, data_dir, user_id)
    Layout(data_dir).finish_restore()
    if user_folder(data_dir, user_id).exists():
        with open_memory(data_dir, settings, user_id, shared=shared) as memory:
            yield memory
        return
    plain = msgspec.structs.replace(settings, encryption=EncryptionSettings())
    with (
        TemporaryDirectory(prefix="memory-agent-") as folder,
        _open(Memory, Path(folder) / "empty", plain, user_id, shared=shared) as memory,
    ):
        yield memory


@contextmanager
def shared_items(data_dir: Path, settings: Settings) -> Iterator[SharedStore]:
    """Yield the shared items of a data folder. The first request opens their store; the first publication creates it.

    Requests raise the same exceptions as `open_memory`.
    """

    def open_store(embedder: Embedder | None) -> Knowledge:
        folder = _prepared(data_dir, settings, SHARED_USER)
        return _open(Knowledge, folder, settings, SHARED_USER, embedder=embedder)

    folder = user_folder(data_dir, SHARED_USER)
    with closing(KnowledgeOnFiles(folder, open_store, settings.embedder)) as shared:
        yield shared


def _prepared(data_dir: Path, settings: Settings, user_id: str) -> Path:
    open_user_key(settings.encryption, data_dir, user_id)  # rejects a key folder inside the data folder
    layout = Layout(data_dir)
    layout.create()
    layout.finish_restore()
    fetch_home(data_dir, settings, user_id)
    return user_folder(data_dir, user_id)


def _open(
    kind: type[_Kind],
    folder: Path,
    settings: Settings,
    user_id: str,
    *,
    retention: RetentionSettings | None = None,
    shared: SharedStore | None = None,
    embedder: Embedder | None = None,
) -> _Kind:
    return kind.open(
        folder,
        user_id=user_id,
        settings=msgspec.structs.replace(settings, retention=retention or RetentionSettings()),
        age_now=False,
        shared=shared,
        embedder=embedder,
    )


def forgotten_events(data_dir: Path, user_id: str) -> Callable[[str], bool]:
    """Return a predicate on event ids that is true if the event's memory was forgotten and not stored again.

    Reads only the history of erasures, so it may run while a daemon runs. Raises `StoreError`.
    """
    gone = read_history(user_folder(data_dir, user_id), user_id).events
    return lambda event_id: bool(gone) and fingerprint(user_id, event_id) in gone


def erase(
    data_dir: Path,
    settings: Settings,
    user_id: str,
    selection: Selection,
    now: datetime,
    *,
    dry_run: bool = False,
    warn: Warn = lambda _: None,
) -> ErasureReceipt:
    """Erase memories from every file, and their events from the journal. Durable on return. Idempotent.

    For a user without a store, only events are erased. With `dry_run`, nothing is erased, and the receipt is a preview.
    Raises `InvalidInputError`, `StoreError`, `DaemonRunningError`, `StoreOwnedElsewhereError` and `JournalError`.
    """
    Layout(data_dir).finish_restore()
    if selection.everything:
        selection.check()
        return erase_user(data_dir, settings, user_id, now, dry_run=dry_run, warn=warn)
    if not user_folder(data_dir, user_id).exists():
        return _erase_absent(data_dir, settings, user_id, selection, now, dry_run=dry_run)
    with open_memory(data_dir, settings, user_id, settings.retention) as memory:
        intent = memory.erasure.plan(selection, now)
        selected = intent.all_ids
        if not dry_run:
            intent = memory.erasure.begin(intent)
        erased = erase_events_of(data_dir, settings, user_id, intent, now, dry_run=dry_run)
        receipt = memory.erasure.receipt(intent, now) if dry_run else memory.erasure.carry_out(intent, now)
    receipt = request.with_journal(receipt, erased, is_compact=True).of_ids(selection.ids, selected)
    return with_copies(receipt, data_dir)


def erase_user(
    data_dir: Path,
    settings: Settings,
    user_id: str,
    now: datetime,
    *,
    dry_run: bool = False,
    warn: Warn = lambda _: None,
) -> ErasureReceipt:
    """Erase a user's shared items, events, ownership of runs, and folder. Durable on return; idempotent after a crash.

    Needs no key: unreadable memories are removed without being counted, and `warn` is called.
    """
    folder = user_folder(data_dir, user_id)
    shared, left = SharedPart(), None
    try:
        shared, left = _forget_shared(data_dir, settings, user_id, now, dry_run=dry_run)
    except StoreOwnedElsewhereError:
        raise
    except (EncryptionKeyMissingError, StoreError) as error:
        left = request.left_shared(error.code)
    ids: tuple[str, ...] = ()
    if folder.exists():
        try:
            with open_memory(data_dir, settings, user_id) as memory:
                ids = memory.erasure.plan(Selection(everything=True), now).record_ids
        except (EncryptionKeyMissingError, StoreDamagedError) as error:
            warn(f"the memories are not counted, because they cannot be read ({error.code})")
    wanted = Erasable(user_id=user_id, everything=True)
    erased = erase_events(data_dir, settings, wanted, now, dry_run=dry_run, forget_owner=True)
    if not dry_run:
        erase_user_files(data_dir, user_id, now, settings.index)
    reason = None if dry_run else left or moved_aside_reason(folder, whole_user=True)
    receipt = ErasureReceipt.of(user_id, ids, now, dry_run=dry_run, reason=reason)
    return with_copies(request.with_journal(request.with_shared(receipt, shared), erased, is_compact=True), data_dir)


def _forget_shared(
    data_dir: Path, settings: Settings, user_id: str, now: datetime, *, dry_run: bool
) -> tuple[SharedPart, str | None]:
    """Remove a user's shared items and statistics, unless `dry_run` is set.

    Returns the number of items and, if the journal still refers to them, the reason.
    """
    with shared_items(data_dir, settings) as shared:
        found: SharedPart = shared.ask(Caller(user_id=user_id), ForgetUser(dry_run=dry_run), _SHARED_TIMEOUT_S)
        if not dry_run:
            try:
                _tell(data_dir, settings, shared, now)
            except JournalError as error:
                return found, request.left_in_journal(error.code)
    return found, None


def _tell(data_dir: Path, settings: Settings, shared: SharedStore, now: datetime) -> None:
    """Move the publish log to the journal, as a daemon's announcer does, so that no removed item remains in the log."""
    if not journal_folder(data_dir).exists():
        return
    caller = Caller(user_id=SHARED_USER)
    with _open_journal(data_dir, settings) as journal:
        journal.flush_copy()
        untold = shared.ask(caller, ReadLog(), _SHARED_TIMEOUT_S)
        while untold.through:
            if untold.outdated is not None:
                journal.erase_all(untold.outdated, now)
            checked = check_events(untold.events, settings.relay.events, now)
            events = [read_event(one.data) for one in checked if one.receipt is None]
            journal.append(events, now, origins=[Origin(LOCAL, for_all=True)] * len(events))
            journal.flush_copy()
            untold = shared.ask(caller, ReadLog(after=untold.through), _SHARED_TIMEOUT_S)


def _erase_absent(
    data_dir: Path, settings: Settings, user_id: str, selection: Selection, now: datetime, *, dry_run: bool
) -> ErasureReceipt:
    intent = request.intent_for_absent_user(selection, now)
    erased = erase_events_of(data_dir, settings, user_id, intent, now, dry_run=dry_run)
    if not dry_run:
        note_absent_user_erased(data_dir, user_id, intent, erased, now)
    receipt = ErasureReceipt.of(user_id, (), now, dry_run=dry_run)
    return with_copies(request.with_journal(receipt, erased, is_compact=True).of_ids(selection.ids, ()), data_dir)


def erase_events_of(
    data_dir: Path, settings: Settings, user_id: str, intent: Intent, now: datetime, *, dry_run: bool = False
) -> Erased:
    """Erase an intent's events from the journal, and the events of `system` about the intent's session and runs."""
    among = keys_of(intent.session_id, intent.run_ids)
    wanted = request.erasable(user_id, intent)
    if user_id == SHARED_USER:  # events about shared items contain fingerprints, not ids
        wanted = msgspec.structs.replace(wanted, quoted=frozenset(fingerprint(user_id, one) for one in wanted.quoted))
    return erase_events(data_dir, settings, wanted, now, among, dry_run=dry_run)


def erase_events(
    data_dir: Path,
    settings: Settings,
    wanted: Erasable,
    now: datetime,
    among: frozenset[str] | None = None,
    *,
    dry_run: bool = False,
    forget_owner: bool = False,
) -> Erased:
    """Erase one user's events from the journal, including events that conductors published for the user as `system`.

    `among` restricts the events of `system` to these runs and sessions. `forget_owner` also removes the user from the
    map of run owners. Events in the data folder that hooks have not sent yet are erased too. Durable on return. Raises
    `JournalError` and `StoreError`.
    """
    if not dry_run:
        erase_hook_events(data_dir, wanted, DEFAULT_USER)
    with _open_owners(data_dir, settings) as owners:
        is_owned = partial(is_named if owners is None else owners.has, wanted.user_id, among=among)
        erased = Erased(seqs=[], quarantined=0)
        if journal_folder(data_dir).exists():
            with _open_journal(data_dir, settings) as journal:
                wanted = msgspec.structs.replace(
                    wanted,
                    system_seqs=frozenset(one.seq for one in _events_of(journal, SYSTEM_USER) if is_owned(one.data)),
                    quarantine_ids=frozenset(_system_quarantine(journal, is_owned)),
                )
                erased = journal.erase_all(wanted, now, dry_run=dry_run)
                if not dry_run and journal.uncompacted:
                    journal.compact()
        if forget_owner and owners is not None and not dry_run:
            owners.forget(wanted.user_id)
    return erased


@contextmanager
def _open_owners(data_dir: Path, settings: Settings) -> Iterator[Owners | None]:
    path = Layout(data_dir).owners
    if not path.exists():
        yield None
        return
    with closing(Owners(path, key=open_user_key(settings.encryption, data_dir, SYSTEM_USER))) as owners:
        yield owners


def _open_journal(data_dir: Path, settings: Settings, *, readonly: bool = False) -> Journal:
    keys = open_key_ring(settings.encryption, data_dir)
    copy = None if readonly else archived_journal(settings.archive)
    return Journal.open(journal_folder(data_dir), settings.relay.journal, readonly=readonly, keys=keys, copy=copy)


def _events_of(journal: Journal, user_id: str) -> Iterator[JournalEntry]:
    after = 0
    while page := journal.read(after, _PAGE, user_id=user_id):
        yield from page
        after = page[-1].seq


def _system_quarantine(journal: Journal, is_owned: IsOwned) -> Iterator[int]:
    after = 0
    while page := journal.quarantined(after, _PAGE):
        traces = ((entry.id, quarantined_traces(entry)) for entry in page)
        yield from (id_ for id_, trace in traces if trace is not None and is_owned(trace))
        after = page[-1].id


def erased_events(data_dir: Path, settings: Settings, user_id: str, history: History) -> list[str]:
    """Return the ids of a user's events that `history` lists as erased but the journal still contains."""
    wanted = history.events
    if not wanted or not journal_folder(data_dir).exists():
        return []
    with _open_journal(data_dir, settings) as journal:
        ids = (read_event(entry.data).event_id for entry in _events_of(journal, user_id))
        return [one for one in ids if fingerprint(user_id, one) in wanted]


def read_quarantine(data_dir: Path, settings: Settings, after: int, limit: int) -> Sequence[QuarantinedEvent]:
    """Return the first `limit` quarantined events with ids above `after`, without their content."""
    if not journal_folder(data_dir).exists():
        return []
    with _open_journal(data_dir, settings, readonly=True) as journal:
        return [QuarantinedEvent.of(entry) for entry in journal.quarantined(after, limit)]


def compact_journal(data_dir: Path, settings: Settings) -> None:
    """Compact the journal, if there is one. Durable on return. Raises `JournalError` and `JournalInUseError`."""
    if journal_folder(data_dir).exists():
        with _open_journal(data_dir, settings) as journal:
            journal.compact()
