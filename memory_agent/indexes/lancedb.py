"""An index in a LanceDB dataset in the user's folder. Searches are exact.

Each write adds a version of the dataset with its own files, which are merged after many writes. The position is stored
beside the dataset, in a file that is replaced after each write. After a crash between these two steps, the write is
repeated. Vectors are float16.

d = dimensions.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import lancedb
import msgspec
import numpy as np
import pyarrow as pa

from memory_agent.errors import IndexUnusableError
from memory_agent.indexes import contract
from memory_agent.indexes.contract import COLUMNS, EVERYTHING, Entry, Hits, IndexOf, Position, Where
from memory_agent.records.embedded import Embedding
from relay import described
from relay.disk import write_private
from relay.locks import WAIT_FOR_EVER, holding

FOLDER = "index.lance"

_NAME = "lancedb"
_TABLE = "vectors"
_POSITION = "position"
_MOST_WRITES = 64  # number of writes after which their files are merged
_AT_ONCE = timedelta(milliseconds=1)  # no other process reads the dataset

_FAILURES = (OSError, RuntimeError, ValueError, pa.ArrowInvalid)


class _Stored(msgspec.Struct, frozen=True):
    version: int
    position: Position


_stored = msgspec.msgpack.Decoder(described(_Stored))


class LanceIndex:
    """One user's vectors in a LanceDB dataset. Thread-safe."""

    name = _NAME
    is_approximate = False
    is_due = False

    def __init__(self, of: IndexOf) -> None:
        self._folder = of.folder / FOLDER
        self._using = threading.RLock()
        self._database: Any = None
        self._table: Any = None
        self._position: Position | None = None
        self._writes = 0

    @property
    def position(self) -> Position | None:
        with self._opened():
            return self._position

    def begin(self, position: Position) -> None:
        with self._opened():
            self._drop()
            self._create(position)
            self._move_to(position)

    def index(self, entries: Sequence[Entry], position: Position) -> None:
        for entry in entries:
            contract.check_width(entry.vectors, position.ndim)
        with self._opened():
            if entries:
                self._delete([entry.row for entry in entries])
                self._table.add(_batch(entries, position.ndim))
                self._merge_files()
            self._move_to(position)

    def delete(self, rows: Sequence[int]) -> None:
        with self._opened():
            if self._table is not None and rows:
                self._delete(rows)

    def search(self, vector: Embedding, limit: int, where: Where = EVERYTHING, timeout_s: float | None = None) -> Hits:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._opened(timeout_s):
            if self._position is None or self._table is None:
                return Hits.of()
            contract.check_width(vector, self._position.ndim)
            query = self._table.search(vector.astype(np.float16), vector_column_name="embedding")
            query = query.distance_type("cosine").select(["memory", "_distance"]).limit(limit)
            if where != EVERYTHING:
                query = query.where(_condition(where), prefilter=True)
            left = None if until_s is None else timedelta(seconds=max(0.0, until_s - time.monotonic()))
            try:
                found = query.to_arrow(timeout=left)
            except RuntimeError as error:
                if left is not None and "timeout" in str(error):
                    raise TimeoutError from error
                raise
        return Hits(found["memory"].to_numpy(), 1 - found["_distance"].to_numpy().astype(np.float32))

    def count(self, scope: str | None = None, id: str = "") -> int:
        where = Where.of_scope(scope, id)
        with self._opened():
            if self._table is None:
                return 0
            query = self._table.search().select(["memory"])
            if scope is not None:
                query = query.where(_condition(where))
            return len(np.unique(query.to_arrow()["memory"].to_numpy()))

    def compact(self) -> None:
        with self._opened():
            if self._table is not None:
                content = self._table.to_arrow()  # merging files keeps deleted rows if their share is small
                self._table = self._database.create_table(_TABLE, content, mode="overwrite")
                self._table.optimize(cleanup_older_than=_AT_ONCE, delete_unverified=True)

    def interrupt(self) -> None:
        """Do nothing, because `compact` takes only seconds."""

    def clear(self) -> None:
        with self._using:
            self.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        with self._using:
            self._database = self._table = self._position = None

    @contextmanager
    def _opened(self, timeout_s: float | None = None) -> Iterator[None]:
        """Open the dataset if it is not open. After an error, the next call opens it again.

        Raises `TimeoutError` if another call uses the dataset for longer than `timeout_s`.
        """
        with holding(self._using, WAIT_FOR_EVER if timeout_s is None else timeout_s) as is_held:
            if not is_held:
                raise TimeoutError
            try:
                if self._database is None:
                    self._open()
                yield
            except TimeoutError:  # an `OSError`
                raise
            except _FAILURES as error:
                self.close()
                advice = f"check that {self._folder} is writable, or remove it to rebuild it from the records"
                raise IndexUnusableError(_NAME, f"{type(error).__name__} in {FOLDER}", advice) from error

    def _open(self) -> None:
        with suppress(FileNotFoundError):
            stored = _stored.decode((self._folder / _POSITION).read_bytes())
            contract.check_version(_NAME, stored.version)
            self._position = stored.position
        database = lancedb.connect(str(self._folder))
        if self._position is not None and self._position.ndim:
            self._table = database.open_table(_TABLE)
        self._database = database

    def _drop(self) -> None:
        (self._folder / _POSITION).unlink(missing_ok=True)
        self._database.drop_table(_TABLE, ignore_missing=True)
        self._table = self._position = None
        self._writes = 0

    def _create(self, position: Position) -> None:
        if position.ndim:
            self._table = self._database.create_table(_TABLE, schema=_schema(position.ndim))

    def _delete(self, rows: Sequence[int]) -> None:
        self._table.delete(f"memory IN ({', '.join(map(str, rows))})")

    def _merge_files(self) -> None:
        self._writes += 1
        if self._writes >= _MOST_WRITES:
            self._table.optimize(cleanup_older_than=_AT_ONCE, delete_unverified=True)
            self._writes = 0

    def _move_to(self, position: Position) -> None:
        self._folder.mkdir(exist_ok=True)
        content = msgspec.msgpack.encode(_Stored(contract.SCHEMA_VERSION, position))
        write_private(self._folder / _POSITION, content)
        self._position = position


def _schema(ndim: int) -> pa.Schema:
    names = [pa.field(column, pa.string()) for column in COLUMNS]
    vector = pa.list_(pa.float16(), ndim)
    return pa.schema([("memory", pa.int64()), *names, ("time_us", pa.int64()), ("embedding", vector)])


def _batch(entries: Sequence[Entry], ndim: int) -> pa.Table:
    lines = [entry for entry in entries for _ in entry.vectors]
    vectors = np.concatenate([entry.vectors for entry in entries]).astype(np.float16)
    names = ([entry.names[place] for entry in lines] for place in range(len(COLUMNS)))
    columns = [
        pa.array([entry.row for entry in lines], pa.int64()),
        *(pa.array(column, pa.string()) for column in names),
        pa.array([entry.time_us for entry in lines], pa.int64()),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), ndim),
    ]
    return pa.Table.from_arrays(columns, schema=_schema(ndim))


def _condition(where: Where) -> str:
    condition, values = where.condition("{}")
    return condition.format(*map(_literal, values))


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
