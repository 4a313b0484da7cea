"""Test that the rows of an event table in another program's SQLite file arrive once, and the file stays unchanged."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import structlog.testing
from relays import RelayProcess, entries, wait_until

from relay import (
    Broker,
    BrokerSettings,
    EventLimits,
    RelaySettings,
    RelaySettingsError,
    Subscriber,
    TableTail,
    read_event,
    table_problem,
)

COLUMNS = "event_id TEXT, timestamp TEXT, event_type TEXT, payload TEXT, actor_id TEXT, user_id TEXT, session_id TEXT"


def create(file: Path, columns: str = COLUMNS, table: str = "events") -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"CREATE TABLE {table} (seq INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")
        connection.commit()


def insert(file: Path, table: str = "events", **row: object) -> None:
    with closing(sqlite3.connect(file)) as connection:
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        connection.commit()


def row(number: int, **fields: object) -> dict[str, object]:
    return {
        "event_id": f"event-{number:06d}",
        "timestamp": "2026-02-16 10:00:00",
        "event_type": "worker.report.received",
        "payload": json.dumps({"number": number}),
        "user_id": "alice",
    } | fields


def following(*tables: TableTail) -> RelaySettings:
    return RelaySettings(broker=BrokerSettings(tables=tables))


def tail(file: Path, name: str = "old", **settings: object) -> TableTail:
    return TableTail(name=name, path=str(file), poll_interval_s=0.01, **settings)  # type: ignore[arg-type]


def test_each_row_is_journaled_once_across_a_kill(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    create(file)
    for number in range(3):
        insert(file, **row(number))
    with closing(sqlite3.connect(file)) as connection:
        connection.executemany(
            "INSERT INTO events (event_id, event_type, payload, user_id) VALUES (?, 'a.b', '{}', 'bob')",
            [(f"event-{number:06d}",) for number in range(3, 1_200)],
        )
        connection.commit()
    with RelayProcess(data_dir, following(tail(file))) as relay:
        with Subscriber(*relay.endpoints) as subscriber:
            wait_until(lambda: subscriber.stats().journal.last_seq >= 500)
        relay.kill()
        insert(file, **row(1_200))
        relay.start()
        with Subscriber(*relay.endpoints) as subscriber:
            wait_until(lambda: subscriber.stats().journal.last_seq == 1_201)
            insert(file, **row(1_201))
            wait_until(lambda: subscriber.stats().journal.last_seq == 1_202)
            assert entries(subscriber) == [(number + 1, f"event-{number:06d}") for number in range(1_202)]


def test_columns_may_be_missing_and_the_table_may_have_another_name(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    create(file, "event_type TEXT, payload BLOB", table="history")
    for _ in range(2):
        insert(file, "history", event_type="a.b", payload=b'{"same": "text"}')
    table = tail(file, table="history", default_user="owner")
    with Broker(data_dir, following(table)) as broker, Subscriber(*broker.endpoints) as subscriber:
        wait_until(lambda: subscriber.stats().journal.last_seq == 2)
        events = [read_event(entry.data) for entry in subscriber.fetch(0, 10).entries]
        assert [(one.event_id, one.user_id, one.payload) for one in events] == [
            (f"table:old:{number}", "owner", {"same": "text"}) for number in (1, 2)
        ]


def test_a_bad_row_goes_to_quarantine_and_the_next_one_in(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    create(file)
    bad = {
        "payload: is not JSON": row(1, payload="{broken"),
        "payload: is not UTF-8": row(2, payload=b'{"a": "\xff"}'),
        "payload: expected an object": row(3, payload="[1]"),
        "payload: has": row(4, payload="x" * 300_000),
        "user_id: is missing": row(5, user_id=None),
        "user_id: '../x' is unsafe": row(6, user_id="../x"),
        "event_type: is missing": row(7, event_type=None),
        "timestamp: 'yesterday' is neither": row(8, timestamp="yesterday"),
        "timestamp: is ": row(9, timestamp="2999-01-01T00:00:00Z"),
        "session_id: expected text, got float": row(10, session_id=None, actor_id=None) | {"session_id": 1.5},
    }
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE events")
        connection.execute(
            "CREATE TABLE events (seq INTEGER PRIMARY KEY, event_id, timestamp, event_type, payload, actor_id,"
            " user_id, session_id)"
        )
        connection.commit()
    for one in bad.values():
        insert(file, **one)
    insert(file, **row(99))
    with Broker(data_dir, following(tail(file))) as broker, Subscriber(*broker.endpoints) as subscriber:
        wait_until(lambda: subscriber.stats().journal.last_seq == 1)
        assert entries(subscriber) == [(1, "event-000099")]
        quarantined = subscriber.quarantined()
        assert len(quarantined) == subscriber.stats().counts["table_malformed"] == len(bad)
        for entry, reason in zip(quarantined, bad, strict=True):
            assert entry.reason.startswith(reason)
            assert entry.source == "table:old"


def test_a_quarantined_row_can_be_retried(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    create(file)
    insert(file, **row(1, timestamp="2999-01-01T00:00:00Z", payload='{"kept": true}'))
    with Broker(data_dir, following(tail(file))) as broker, Subscriber(*broker.endpoints) as subscriber:
        wait_until(lambda: len(subscriber.quarantined()) == 1)
    patient = RelaySettings(events=EventLimits(max_future_s=1e12))
    with Broker(data_dir, patient) as broker, Subscriber(*broker.endpoints) as subscriber:
        assert subscriber.retry_quarantined(subscriber.quarantined()[0].id)
        (entry,) = subscriber.fetch(0, 1).entries
        assert read_event(entry.data).payload == {"kept": True}
        assert subscriber.quarantined() == []


def test_a_file_that_is_created_later_is_followed(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "later.db"
    with (
        structlog.testing.capture_logs() as lines,
        Broker(data_dir, following(tail(file))) as broker,
        Subscriber(*broker.endpoints) as subscriber,
    ):
        wait_until(lambda: [line["path"] for line in lines if line["event"] == "table.unreadable"] == [str(file)])
        assert not file.exists()
        assert str(file) in table_problem(tail(file))
        create(file)
        insert(file, **row(1))
        wait_until(lambda: subscriber.stats().journal.last_seq == 1)
    assert table_problem(tail(file)) == ""
    assert "no such table: others" in table_problem(tail(file, table="others"))


@pytest.mark.parametrize("columns", ["event_type TEXT", "seq2 TEXT, payload TEXT"])
def test_a_table_without_its_columns_is_reported_without_affecting_others(
    data_dir: Path, tmp_path: Path, columns: str
) -> None:
    file = tmp_path / "events.db"
    create(file, columns)
    with Broker(data_dir, following(tail(file))) as broker, Subscriber(*broker.endpoints) as subscriber:
        wait_until(lambda: subscriber.stats().counts.get("table_errors", 0) > 0)
        assert subscriber.ping()


def test_a_seq_that_is_not_a_number_is_reported(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE events (seq, event_type, payload, user_id)")
        connection.execute("INSERT INTO events VALUES ('one', 'a.b', '{}', 'alice')")
        connection.commit()
    with Broker(data_dir, following(tail(file))) as broker, Subscriber(*broker.endpoints) as subscriber:
        wait_until(lambda: subscriber.stats().counts.get("table_errors", 0) > 0)
        assert subscriber.stats().journal.last_seq == 0


def test_the_file_is_not_written_to(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    create(file)
    insert(file, **row(1))
    before = file.read_bytes()
    with Broker(data_dir, following(tail(file))) as broker, Subscriber(*broker.endpoints) as subscriber:
        wait_until(lambda: subscriber.stats().journal.last_seq == 1)
    assert file.read_bytes() == before


def test_two_tables_need_two_names(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(RelaySettingsError, match="two tables have the same name"):
        Broker(data_dir, following(tail(tmp_path / "a"), tail(tmp_path / "b")))


def test_two_tables_are_followed_each_with_its_own_cursor(data_dir: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        create(tmp_path / name)
        insert(tmp_path / name, **row(1, user_id=name))
    tables = [tail(tmp_path / name, name) for name in ("a", "b")]
    with Broker(data_dir, following(*tables)) as broker, Subscriber(*broker.endpoints) as subscriber:
        wait_until(lambda: subscriber.stats().journal.last_seq == 2)
        assert {entry.user_id for entry in subscriber.fetch(0, 10).entries} == {"a", "b"}


def test_a_python_without_sqlite_can_do_everything_but_follow_tables(data_dir: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['sqlite3'] = None\n"  # importing it raises ImportError
        "from pathlib import Path\n"
        "from relay import Broker, BrokerSettings, RelaySettings, TableTail\n"
        "Broker(Path(sys.argv[1])).start().stop()\n"
        "table = TableTail(name='old', path=sys.argv[2])\n"
        "Broker(Path(sys.argv[1]), RelaySettings(broker=BrokerSettings(tables=(table,))))\n"
    )
    command = [sys.executable, "-c", program, str(data_dir), str(tmp_path / "old.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("setting broker.tables: requires the module sqlite3, which this Python lacks\n")
