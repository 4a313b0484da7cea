"""Erasing from the journal's files where no daemon serves them, and whose runs and sessions those are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from memory_agent.cli.options import Target
from relay import SYSTEM_USER, Erasable, Erased, Journal, journal_folder

if TYPE_CHECKING:
    from memory_agent.storage.owners import Owners

_PAGE = 500


@contextmanager
def owners_of(target: Target) -> Iterator[Owners | None]:
    """What a daemon learnt here of whose runs and sessions those are; None where there never was one."""
    from memory_agent.storage.owners import Owners

    if not target.layout.owners.exists():
        yield None
        return
    with closing(Owners(target.layout.owners, key=target.key_of(SYSTEM_USER))) as owners:
        yield owners


def ownership(target: Target, owners: Owners | None, among: frozenset[str] | None = None) -> Callable[[bytes], bool]:
    """Return what says whether an event of `system` is this user's; without a map, where it names the user."""
    from memory_agent.storage.owners import is_named

    if owners is None:
        return lambda event: is_named(target.user_id, event, among)
    return lambda event: owners.has(target.user_id, event, among)


def _system_events(journal: Journal, is_owned: Callable[[bytes], bool]) -> Iterator[int]:
    after = 0
    while page := journal.read(after, _PAGE, user_id=SYSTEM_USER):
        yield from (entry.seq for entry in page if is_owned(entry.data))
        after = page[-1].seq


def _system_quarantine(journal: Journal, is_owned: Callable[[bytes], bool]) -> Iterator[int]:
    from memory_agent.storage.owners import quarantined_traces

    after = 0
    while page := journal.quarantined(after, _PAGE):
        told = ((entry.id, quarantined_traces(entry)) for entry in page)
        yield from (id_ for id_, traces in told if traces is not None and is_owned(traces))
        after = page[-1].id


def erase_events(
    target: Target, wanted: Erasable, is_owned: Callable[[bytes], bool], now: datetime, *, dry_run: bool
) -> Erased:
    """Erase from the journal's files, and of `system` what is owned; a journal that does not exist holds nothing."""
    folder = journal_folder(target.data_dir)
    if not folder.exists():
        return Erased(seqs=[], quarantined=0)
    with Journal.open(folder, target.settings.relay.journal, keys=target.keys) as journal:
        wanted = msgspec.structs.replace(
            wanted,
            system_seqs=frozenset(_system_events(journal, is_owned)),
            quarantine_ids=frozenset(_system_quarantine(journal, is_owned)),
        )
        erased = journal.erase_all(wanted, now, dry_run=dry_run)
        if not dry_run and journal.uncompacted:
            journal.compact()
    return erased
