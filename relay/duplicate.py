"""A journal copied while it is in use, and consumers moved back in a journal that is not.

A copy of a journal and copies of what its consumers keep are never of one moment. So the cursors are noted before the
consumers are copied, and written into the copy: what lies between is given to them again, which they recognise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from relay.config import JournalSettings
from relay.disk import Environment, take_lock
from relay.entries import DATABASES, Counters, number, number_key


def require_unused(folder: Path) -> None:
    """Raise `JournalInUseError` while somebody writes the journal in `folder`."""
    os.close(take_lock(folder))


def cursors(folder: Path, settings: JournalSettings) -> dict[str, int]:
    """Return how far each consumer is. Raises `JournalError`."""
    environment = Environment.open(folder, settings.map_size_bytes, DATABASES, readonly=True)
    try:
        consumers = environment.databases["consumers"]
        with environment.read() as transaction, transaction.cursor(db=consumers) as cursor:
            return {name.decode(): number(seq) for name, seq in cursor}
    finally:
        environment.close()


def copy_journal(source: Path, target: Path, settings: JournalSettings) -> int:
    """Write a consistent copy of a journal, which may be in use, into the empty folder `target`; return its last
    number. Not fsynced. Raises `JournalError`."""
    environment = Environment.open(source, settings.map_size_bytes, DATABASES, readonly=True)
    try:
        environment.copy(target)
    finally:
        environment.close()
    copy = Environment.open(target, settings.map_size_bytes, DATABASES, readonly=True)
    try:
        with copy.read() as transaction:
            return Counters(copy.databases).get(transaction, "last_seq")
    finally:
        copy.close()


def rewind(folder: Path, settings: JournalSettings, to: Mapping[str, int], *, others: int | None = None) -> None:
    """Move consumers back, so that they are given again what follows; none is moved on. Durable on return.

    `others` is for consumers that `to` does not name. Raises `JournalInUseError`, `JournalError`.
    """
    environment = Environment.open(folder, settings.map_size_bytes, DATABASES)
    try:
        with environment.write() as transaction:
            consumers = environment.databases["consumers"]
            with transaction.cursor(db=consumers) as cursor:
                known = {name: number(seq) for name, seq in cursor}
            for name, seq in known.items():
                wanted = to.get(name.decode(), others)
                if wanted is not None and wanted < seq:
                    transaction.put(name, number_key(wanted), db=consumers)
    finally:
        environment.close()
