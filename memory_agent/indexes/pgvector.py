"""An index in PostgreSQL with the extension pgvector. Each user has a table, named after a digest of the user's id.

With one table per user, a missing condition cannot expose another user's memories. An HNSW graph contains only one
user's vectors, and erasing a user drops the table. The table `users` contains each user's id, position and table.
Vectors are stored as `halfvec`, that is, in float16, as in the records.

Filters are SQL conditions. If few passages match the filter, they are compared exactly, because a graph search is then
slow: 226 ms if 5,000 of 100,000 passages match. A graph search may find too few passages, because `hnsw.iterative_scan`
ends after `hnsw.max_scan_tuples`. Such a search is repeated without the graph.

d = dimensions.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from struct import pack
from typing import Any, ClassVar

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from memory_agent.errors import IndexUnavailableError, IndexUnusableError, MemoryAgentError
from memory_agent.indexes import contract
from memory_agent.indexes.contract import COLUMNS, EVERYTHING, Entry, Hits, IndexOf, Position, Where
from memory_agent.records.embedded import Embedding
from memory_agent.settings import IndexSettings, with_variables
from relay import described
from relay.locks import WAIT_FOR_EVER, holding

_NAME = "pgvector"
_MOST_DIMENSIONS = 4_000  # the limit for an HNSW index of halfvec
_EXPANSION_SEARCH = 100
_GRAPH_TIMEOUT_S = 3_600
_GRACE_S = 1.0  # added to the server's own time limit
_SEARCH_GRACE_S = 0.2  # a busy server needs time to cancel; closing the connection would make other searches fail
_CHECKED_EVERY_S = 0.02  # how often the time limit is checked while waiting for the server
_ENTRY_S = 0.1  # additional time per entry of a write, because a graph may slow the write down: 16 ms per vector
_COLUMNS = ("memory", *COLUMNS, "time_us", "embedding")
_TABLE = (
    "CREATE TABLE {table} (memory bigint NOT NULL, kind text, source text, session text, run text, channel text, "
    "agent text, time_us bigint NOT NULL, embedding halfvec({ndim}) NOT NULL)"
)
_USERS = (
    "CREATE TABLE IF NOT EXISTS {users} (user_id text PRIMARY KEY, vectors text NOT NULL, position bytea NOT NULL, "
    "version int NOT NULL)"
)
_WITHOUT_GRAPH = "SET LOCAL enable_indexscan = off"  # other indexes are still used, by bitmap scans

_positions = msgspec.msgpack.Decoder(described(Position))


class PgvectorIndex:
    """One user's vectors in PostgreSQL. Thread-safe."""

    name = _NAME

    def __init__(self, of: IndexOf) -> None:
        self.is_approximate = False
        self._settings = of.settings
        self._user_id = of.user_id
        self._database: _Database | None = None
        self._position: Position | None = None
        self._is_loaded = False
        self._guard = threading.Lock()
        self._compacting_in_turn = threading.Lock()
        self._other: _Connection | None = None  # used by `compact`
        self._is_interrupted = False
        self._opening = ""  # the opening in the position that was set most recently
        self._passages = 0  # an upper bound; the table's rows are counted again before a graph is built
        self._table = _identifier(of.settings, _table_of(of.user_id))

    @property
    def position(self) -> Position | None:
        with self._transaction():
            return self._position

    @property
    def is_due(self) -> bool:
        return self._passages >= self._settings.hnsw_from and not self.is_approximate

    def begin(self, position: Position) -> None:
        if position.ndim > _MOST_DIMENSIONS:
            reason = f"it supports {_MOST_DIMENSIONS} dimensions, and the model has {position.ndim}"
            raise IndexUnusableError(_NAME, reason, "choose another index, or a model with fewer dimensions")
        with self._writing(position.opening) as connection:
            connection.execute(self._sql("DROP TABLE IF EXISTS {table}"))
            if position.ndim:
                connection.execute(self._sql(_TABLE.replace("{ndim}", str(position.ndim))))
                # halfvec is stored out of line by default; storing it inline makes an exact search 1.5 times as fast
                connection.execute(self._sql("ALTER TABLE {table} ALTER embedding SET STORAGE PLAIN"))
                for column in ("memory", "session", "run", "channel"):
                    connection.execute(self._sql(f"CREATE INDEX ON {{table}} ({column})"))
            self._move_to(connection, position)
            self.is_approximate, self._passages = False, 0

    def index(self, entries: Sequence[Entry], position: Position) -> None:
        for entry in entries:
            contract.check_width(entry.vectors, position.ndim)
        with self._writing(position.opening) as connection:
            if entries:
                rows = [entry.row for entry in entries]
                limit_s = self._settings.timeout_s + _ENTRY_S * len(entries)
                connection.execute(f"SET LOCAL statement_timeout = {round(limit_s * 1000)}")
                connection.answer_s = limit_s + _GRACE_S
                connection.execute(self._sql("DELETE FROM {table} WHERE memory = ANY(%s)"), (rows,))
                copy = self._sql(f"COPY {{table}} ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)")
                with connection.cursor() as cursor, cursor.copy(copy) as rows_in:
                    rows_in.write(_binary(entries))
                self._passages += sum(len(entry.vectors) for entry in entries)
            self._move_to(connection, position)

    def delete(self, rows: Sequence[int]) -> None:
        with self._writing(self._opening) as connection:
            if rows and self._has_table:
                connection.execute(self._sql("DELETE FROM {table} WHERE memory = ANY(%s)"), (list(rows),))

    def search(self, vector: Embedding, limit: int, where: Where = EVERYTHING, timeout_s: float | None = None) -> Hits:
        until_s = None if timeout_s is None else time.monotonic() + min(timeout_s, self._settings.timeout_s)
        condition, values = _condition(where)
        query = self._sql(
            f"SELECT memory, embedding <=> %s::halfvec AS distance FROM {{table}} WHERE {condition} "
            "ORDER BY distance LIMIT %s"
        )
        with self._transaction(until_s) as connection:
            if self._position is None or not self._has_table:
                return Hits.of()
            contract.check_width(vector, self._position.ndim)
            parameters = (_text(vector), *values, limit)
            if self.is_approximate and values and self._are_few(connection, condition, values):
                connection.execute(_WITHOUT_GRAPH)
            connection.limit(until_s)
            found = connection.execute(query, parameters).fetchall()
            if self.is_approximate and len(found) < limit:
                connection.execute(_WITHOUT_GRAPH)
                connection.limit(until_s)
                found = connection.execute(query, parameters).fetchall()
        return Hits.of(found)

    def count(self, scope: str | None = None, id: str = "") -> int:
        condition, values = _condition(Where.of_scope(scope, id))
        with self._transaction() as connection:
            if not self._has_table:
                return 0
            query = self._sql(f"SELECT count(DISTINCT memory) FROM {{table}} WHERE {condition}")
            found = connection.execute(query, values).fetchone()
            return 0 if found is None else int(found[0])

    def compact(self) -> None:
        """Vacuum the user's table and, if it is large enough, build its graph, while searches continue."""
        name = f"{_table_of(self._user_id)}_graph"
        graph = f"CREATE INDEX CONCURRENTLY {name} ON {{table}} USING hnsw (embedding halfvec_cosine_ops)"
        with self._compacting_in_turn:  # two compactions at once fail: "tuple concurrently updated"
            with self._transaction() as connection:
                if not self._has_table:
                    return
                self._count_passages(connection)
            with _translated(), self._compacting() as other:
                if self.is_due:
                    unfinished = _identifier(self._settings, name)
                    other.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(unfinished))
                    other.execute("SET maintenance_work_mem = '256MB'")
                    other.execute(self._sql(graph))
                other.execute(self._sql("VACUUM (ANALYZE) {table}"))
            with self._transaction() as connection:
                self.is_approximate = self._has_graph(connection)

    def interrupt(self) -> None:
        with self._guard:
            self._is_interrupted, other = True, self._other
        if other is not None:
            with suppress(psycopg.Error):
                other.cancel_safe(timeout=_GRACE_S)
            other.answer_s = 0.0  # end the wait for a server that is down

    def clear(self) -> None:
        forget_user(self._settings, self._user_id)
        self._is_loaded = False

    def close(self) -> None:
        if self._database is not None:
            self._database.release()
        self._database, self._is_loaded = None, False

    @contextmanager
    def _compacting(self) -> Iterator[_Connection]:
        """Open a separate connection; `interrupt` cancels its statement."""
        with _connected(self._settings, _GRAPH_TIMEOUT_S) as other:
            with self._guard:
                if self._is_interrupted:
                    raise IndexUnavailableError(_NAME, "the index is being closed")
                self._other = other
            try:
                yield other
            finally:
                self._other = None

    @property
    def _has_table(self) -> bool:
        return self._position is not None and self._position.ndim > 0

    def _has_graph(self, connection: _Connection) -> bool:
        name = f"{self._settings.database_schema}.{_table_of(self._user_id)}_graph"
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        return connection.execute(query, (name,)).fetchone() == (True,)

    def _are_few(self, connection: _Connection, condition: str, values: list[Any]) -> bool:
        """Whether so few passages pass a filter that an exact search is faster than a graph search."""
        most = self._settings.hnsw_from
        query = self._sql(f"SELECT count(*) FROM (SELECT 1 FROM {{table}} WHERE {condition} LIMIT {most}) AS passing")
        return connection.execute(query, values).fetchone() != (most,)

    def _count_passages(self, connection: _Connection) -> None:
        found = connection.execute(self._sql("SELECT count(*) FROM {table}")).fetchone()
        self._passages = 0 if found is None else int(found[0])

    def _sql(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(table=self._table, users=_identifier(self._settings, "users"))

    @contextmanager
    def _transaction(self, until_s: float | None = None) -> Iterator[_Connection]:
        """Hold the process's connection for one transaction. After an error, the position is read again. With
        `until_s`, raises `TimeoutError` at that time, and `IndexUnavailableError` if the position would have to be read
        first.
        """
        if self._database is None:
            self._database = _Database.of(self._settings)
        try:
            with self._database.transaction(until_s) as connection:
                if not self._is_loaded:
                    if until_s is not None:
                        raise IndexUnavailableError(_NAME, "its position is not known")
                    self._load(connection)
                yield connection
        except TimeoutError:
            raise
        except BaseException:
            self._is_loaded = False
            raise

    @contextmanager
    def _writing(self, opening: str) -> Iterator[_Connection]:
        """Hold the connection for one write transaction. Raises `IndexUnusableError` if the memory was opened
        elsewhere: a replaced host may still try to write."""
        with self._transaction() as connection:
            query = self._sql("SELECT position FROM {users} WHERE user_id = %s FOR UPDATE")
            found = connection.execute(query, (self._user_id,)).fetchone()
            if found is not None and _positions.decode(found[0]).opening > opening:
                advice = "close the memory here; if it is open nowhere else, migrate to builtin and back"
                raise IndexUnusableError(_NAME, f"{self._user_id} has since been opened elsewhere", advice)
            self._opening = opening
            yield connection

    def _load(self, connection: _Connection) -> None:
        query = self._sql("SELECT position, version FROM {users} WHERE user_id = %s")
        found = connection.execute(query, (self._user_id,)).fetchone()
        self._position = None
        if found is not None:
            contract.check_version(_NAME, found[1])
            self._position = _positions.decode(found[0])
        self.is_approximate = self._has_graph(connection)
        if self._has_table and not self.is_approximate:
            self._count_passages(connection)
        self._is_loaded = True

    def _move_to(self, connection: _Connection, position: Position) -> None:
        connection.execute(
            self._sql(
                "INSERT INTO {users} VALUES (%s, %s, %s, %s) ON CONFLICT (user_id) DO UPDATE SET "
                "vectors = EXCLUDED.vectors, position = EXCLUDED.position, version = EXCLUDED.version"
            ),
            (self._user_id, _table_of(self._user_id), msgspec.msgpack.encode(position), contract.SCHEMA_VERSION),
        )
        self._position = position  # read again from the database if the transaction fails


class _Database:
    """This process's connection to a database. All indexes with the same settings share it and take turns."""

    _opened: ClassVar[dict[IndexSettings, _Database]] = {}
    _opening = threading.Lock()

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self._using = threading.RLock()
        self._connection: _Connection | None = None
        self._indexes = 0

    @classmethod
    def of(cls, settings: IndexSettings) -> _Database:
        """Return the shared connection; `release` it when it is no longer needed."""
        with cls._opening:
            shared = cls._opened.setdefault(settings, cls(settings))
            shared._indexes += 1
            return shared

    def release(self) -> None:
        with self._opening:
            self._indexes -= 1
            if not self._indexes:
                del self._opened[self._settings]
                self._close()

    @contextmanager
    def transaction(self, until_s: float | None = None) -> Iterator[_Connection]:
        """Hold the connection for one transaction. After an error, the next call reconnects. With `until_s`, raises
        `TimeoutError` at that time, and `IndexUnavailableError` if there is no connection.
        """
        wait_s = WAIT_FOR_EVER if until_s is None else max(0.0, until_s - time.monotonic())
        with holding(self._using, wait_s) as is_held, _translated():
            if not is_held:
                raise TimeoutError
            try:
                if self._connection is None:
                    if until_s is not None:
                        raise IndexUnavailableError(_NAME, "the connection was lost")
                    self._connection = self._prepared()
                self._connection.answer_s = self._settings.timeout_s + _GRACE_S
                if until_s is not None:
                    self._connection.answer_s = max(0.0, until_s - time.monotonic()) + _SEARCH_GRACE_S
                with self._connection.transaction():
                    self._connection.limit(until_s)
                    yield self._connection
            except psycopg.errors.QueryCanceled as error:
                if until_s is None:
                    self._close()
                    raise
                raise TimeoutError from error
            except (TimeoutError, MemoryAgentError):
                raise
            except BaseException:
                self._close()
                raise

    def _prepared(self) -> _Connection:
        connection = _connected(self._settings, self._settings.timeout_s)
        try:
            if not _has_users(connection, self._settings):
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                schema = sql.Identifier(self._settings.database_schema)
                connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
                connection.execute(sql.SQL(_USERS).format(users=_identifier(self._settings, "users")))
            connection.execute("SELECT NULL::vector")  # loads the library that defines the settings
            connection.execute(f"SET hnsw.ef_search = {_EXPANSION_SEARCH}")
            connection.execute("SET hnsw.iterative_scan = strict_order")
        except BaseException:
            connection.close()
            raise
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def forget_user(settings: IndexSettings, user_id: str) -> None:
    """Remove a user's table and position, if they exist."""
    users = _identifier(settings, "users")
    with _translated(), _connected(settings, settings.timeout_s) as connection, connection.transaction():
        if _has_users(connection, settings):
            table = _identifier(settings, _table_of(user_id))
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
            connection.execute(sql.SQL("DELETE FROM {} WHERE user_id = %s").format(users), (user_id,))


def users(settings: IndexSettings) -> list[str]:
    with _translated(), _connected(settings, settings.timeout_s) as connection:
        if not _has_users(connection, settings):
            return []
        query = sql.SQL("SELECT user_id FROM {} ORDER BY user_id").format(_identifier(settings, "users"))
        return [user_id for (user_id,) in connection.execute(query)]


def _has_users(connection: _Connection, settings: IndexSettings) -> bool:
    name = f"{settings.database_schema}.users"
    return connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,)


def _connected(settings: IndexSettings, timeout_s: float) -> _Connection:
    connection = _Connection.connect(
        _url_of(settings), autocommit=True, connect_timeout=max(2, round(settings.timeout_s))
    )
    connection.answer_s = timeout_s + _GRACE_S
    connection.execute(f"SET statement_timeout = {round(timeout_s * 1000)}")
    connection.execute("SET client_min_messages = error")
    return connection


def _url_of(settings: IndexSettings) -> str:
    """Return the URL. Raises `IndexUnusableError` if the driver's error would contain parts of the URL."""
    url = with_variables("index.url", settings.url)
    try:
        parts = conninfo_to_dict(url)
        is_usable = "@" not in str(parts.get("host", "")) and re.fullmatch(r"[\d,]*", str(parts.get("port", "")))
    except psycopg.ProgrammingError:
        is_usable = None
    if not is_usable:
        advice = "write postgresql://USER:${PASSWORD}@HOST/DATABASE, or percent-encode special characters"
        raise IndexUnusableError(_NAME, "index.url is not a connection URL", advice)
    return url


class _Connection(psycopg.Connection[Any]):
    """A connection that is closed if the server does not answer within `answer_s`.

    PostgreSQL enforces `statement_timeout`, but cannot do so if its machine or the network is down.
    """

    answer_s = _GRACE_S

    def limit(self, until_s: float | None) -> None:
        """Cancel this transaction's next statement at `until_s`, if given. Raises `TimeoutError` if it has passed."""
        if until_s is None:
            return
        left_ms = int(1000 * (until_s - time.monotonic()))
        if left_ms <= 0:
            raise TimeoutError
        self.answer_s = left_ms / 1000 + _SEARCH_GRACE_S
        self.execute(f"SET LOCAL statement_timeout = {left_ms}")

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Wait as the driver does, but only for a limited time. Raises `OperationalError`."""
        try:
            return super().wait(self._limited(gen), *args, **options | {"interval": _CHECKED_EVERY_S})
        except _NoAnswerError:
            self.close()
            raise

    def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run one of the driver's generators, which wait for the server repeatedly."""
        began_s, ready = time.monotonic(), None
        try:
            while True:
                wanted = gen.send(ready)
                ready = yield wanted
                if not ready and time.monotonic() > began_s + self.answer_s:
                    raise _NoAnswerError(f"no answer within {self.answer_s:.3g} s")
        except StopIteration as ended:
            return ended.value


class _NoAnswerError(psycopg.OperationalError):
    """The server did not answer in time."""


@contextmanager
def _translated() -> Iterator[None]:
    """Translate the driver's errors. Only the first line of a message is kept, because the other lines may contain
    values."""
    try:
        yield
    except (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.InsufficientPrivilege) as error:
        advice = "connect to the primary with a role that may write, or grant it CREATE on the database"
        raise IndexUnusableError(_NAME, _reason(error), advice) from error
    except (psycopg.errors.DiskFull, psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise IndexUnavailableError(_NAME, _reason(error)) from error
    except psycopg.Error as error:
        advice = "correct index.url, or install pgvector 0.8 or later in the database"
        raise IndexUnusableError(_NAME, _reason(error), advice) from error


def _reason(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__


def _identifier(settings: IndexSettings, name: str) -> sql.Identifier:
    return sql.Identifier(settings.database_schema, name)


def _table_of(user_id: str) -> str:
    return f"vectors_{blake2b(user_id.encode(), digest_size=16).hexdigest()}"


def _condition(where: Where) -> tuple[str, list[Any]]:
    condition, values = where.condition("%s")
    return condition, [_storable(value) if isinstance(value, str) else value for value in values]


def _storable(name: str) -> str:
    """Replace NUL in a name, because PostgreSQL cannot store it."""
    return name.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _text(vector: Embedding) -> str:
    return f"[{','.join(map(str, vector.tolist()))}]"


def _binary(entries: Sequence[Entry]) -> bytes:
    """Encode entries in the binary format of COPY, which is 10 times as fast as INSERT."""
    parts = [b"PGCOPY\n\xff\r\n\0", pack(">ii", 0, 0)]
    for entry in entries:
        names = [None if name is None else _storable(name).encode() for name in entry.names]
        for vector in entry.vectors.astype(">f2"):
            fields = (pack(">q", entry.row), *names, pack(">q", entry.time_us))
            parts.append(pack(">h", len(_COLUMNS)))
            parts += [pack(">i", -1) if one is None else pack(">i", len(one)) + one for one in fields]
            parts += [pack(">iHH", 4 + vector.nbytes, len(vector), 0), vector.tobytes()]
    return b"".join([*parts, pack(">h", -1)])
