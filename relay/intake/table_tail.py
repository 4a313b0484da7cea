"""Intake from an event table in an SQLite file that another program writes. The file is only read.

The cursor advances in the transaction that appends the rows, so each row is journaled exactly once. Malformed rows are
quarantined. If the file or table is missing, reading is retried.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from relay.access import publisher_for_all
from relay.config import TableTail
from relay.errors import ConsumerBehindError, EventTooLargeError, MalformedEventError, RelaySettingsError
from relay.event import Event
from relay.intake.admission import Admission, Admitted
from relay.journal import Journal
from relay.log import log

try:
    import sqlite3
except ImportError as error:
    raise RelaySettingsError("broker.tables", "requires the module sqlite3, which this Python lacks") from error

_REQUIRED = ("seq", "event_type", "payload")
_OPTIONAL = ("event_id", "timestamp", "actor_id", "user_id", "session_id", "thread_id")
_ROWS = 500
_BUSY_S = 5.0
_RETRY_S = 1.0

Row = dict[str, Any]


class TableFollower:
    """A worker's task: journals new rows of one table, one batch per transaction."""

    def __init__(
        self,
        journal: Journal,
        table: TableTail,
        admission: Admission,
        counts: Counter[str],
        on_append: Callable[[], None],
        max_lag: int = 0,
    ) -> None:
        self._max_lag = max_lag
        self.name = f"table-{table.name}"
        self._source = f"table:{table.name}"
        self._journal = journal
        self._table = table
        self._admission = admission
        self._principal = publisher_for_all(self._source)
        self._counts = counts
        self._on_append = on_append
        self._cursor = journal.source_cursor(self._source) or 0
        self._fault = ""

    def step(self) -> float:
        try:
            self._journal.require_read(self._max_lag)
            rows = self._read()
        except ConsumerBehindError:
            self._counts["table_waits"] += 1
            return _RETRY_S  # the rows stay in the table
        except sqlite3.Error as error:
            self._report_fault(str(error))
            return _RETRY_S
        self._fault = ""
        if rows:
            self._append(rows)
        return 0.0 if len(rows) == _ROWS else self._table.poll_interval_s

    def finish(self) -> None: ...

    def _read(self) -> list[Row]:
        with _opened(self._table) as connection:
            columns = _columns(connection, self._table)
            names = ", ".join(columns)
            query = f"SELECT {names} FROM {self._table.table} WHERE seq > ? ORDER BY seq LIMIT ?"
            rows = connection.execute(query, (self._cursor, _ROWS)).fetchall()
        if not all(type(row[0]) is int for row in rows):
            raise sqlite3.DataError(f"column seq of table {self._table.table} is not an integer")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _append(self, rows: Sequence[Row]) -> None:
        now = datetime.now(UTC)
        admitted: list[tuple[Row, Admitted]] = []
        for row in rows:
            try:
                admitted.append((row, self._event(row, now)))
            except MalformedEventError as error:
                admitted.append((row, error))
        events = [result for _, result in admitted if isinstance(result, Event)]
        refused = [(self._as_json(row), one) for row, one in admitted if not isinstance(one, Event)]
        malformed = self._admission.suspects(refused, self._source)
        through: int = rows[-1]["seq"]
        origins = [self._principal.origin] * len(events)
        appended = self._journal.append(
            events, now, origins=origins, suspects=malformed, source=(self._source, through)
        )
        self._cursor = through
        duplicates = sum(one.duplicate for one in appended)
        self._counts.update(
            table_accepted=len(events) - duplicates, table_duplicates=duplicates, table_malformed=len(malformed)
        )
        self._on_append()

    def _event(self, row: Row, now: datetime) -> Event:
        payload = row["payload"] or b"{}"
        size_bytes = len(payload) if isinstance(payload, bytes) else 0
        max_bytes = self._admission.limits.max_bytes
        if size_bytes > max_bytes:
            raise EventTooLargeError("payload", f"has {size_bytes} bytes; at most {max_bytes} are allowed")
        mapping = {name: _text(name, value) for name, value in row.items() if name not in ("seq", "payload")}
        mapping["user_id"] = mapping.get("user_id") or self._table.default_user
        mapping["event_id"] = mapping.get("event_id") or f"{self._source}:{row['seq']}"
        return self._admission.admit_mapping({**mapping, "payload": _decode_payload(payload)}, self._principal, now)

    def _as_json(self, row: Row) -> bytes:
        shown = {
            name: value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
            for name, value in row.items()
        }
        shown["event_id"] = shown.get("event_id") or f"{self._source}:{shown['seq']}"
        with contextlib.suppress(MalformedEventError):
            shown["payload"] = _decode_payload(row["payload"])
        return msgspec.json.encode(shown)

    def _report_fault(self, fault: str) -> None:
        self._counts["table_errors"] += 1
        if fault != self._fault:
            log.warning("table.unreadable", table=self._table.name, path=str(_path(self._table)), reason=fault)
            self._fault = fault


def table_problem(table: TableTail) -> str:
    """Return the reason why the rows of a table cannot be read now, or "" if they can."""
    try:
        with _opened(table) as connection:
            _columns(connection, table)
    except sqlite3.Error as error:
        return f"{_path(table)}: {error}"
    return ""


def _path(table: TableTail) -> Path:
    return Path(table.path).expanduser().absolute()


@contextlib.contextmanager
def _opened(table: TableTail) -> Iterator[sqlite3.Connection]:
    address = f"file:{quote(str(_path(table)))}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as connection:
        connection.text_factory = bytes
        yield connection


def _columns(connection: sqlite3.Connection, table: TableTail) -> Sequence[str]:
    there = {name.decode() for _, name, *_ in connection.execute(f"PRAGMA table_info({table.table})")}
    if not there:
        raise sqlite3.OperationalError(f"no such table: {table.table}")
    missing = [name for name in _REQUIRED if name not in there]
    if missing:
        raise sqlite3.OperationalError(f"table {table.table} has no column {', '.join(missing)}")
    return [name for name in _REQUIRED + _OPTIONAL if name in there]


def _text(name: str, value: object) -> object:
    """Return a column's value. SQLite does not check that text is UTF-8, so it is decoded here."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MalformedEventError(name, "is not UTF-8") from error


def _decode_payload(payload: object) -> object:
    if not isinstance(payload, bytes):
        return payload
    try:
        return msgspec.json.decode(payload)
    except UnicodeDecodeError as error:
        raise MalformedEventError("payload", "is not UTF-8") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedEventError("payload", f"is not JSON: {error}") from error
