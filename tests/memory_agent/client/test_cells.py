"""Test the choice of a user's cell, the cells file, and the publisher for all cells."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
import xxhash

from memory_agent import MemoryClient
from memory_agent.client.cells import Cell, CellPublisher, Cells, read_cells
from memory_agent.errors import InvalidInputError, SettingsError
from relay import MalformedEventError, RelayUnavailableError

USERS = [f"user-{number}" for number in range(3_000)]


def cells(*names: str) -> Cells:
    return Cells({name: Cell(data_dir=f"/srv/{name}") for name in names})


def event(user_id: str, number: int = 0, **fields: str) -> dict[str, str]:
    return {"event_id": f"{user_id}-{number}", "event_type": "chat.user_msg", "user_id": user_id, **fields}


def test_the_cell_of_a_user_is_the_one_with_the_greatest_hash_whatever_their_order() -> None:
    hashes = {name: xxhash.xxh3_64_intdigest(f"{name}\0alice".encode()) for name in ("cell-0", "cell-1", "cell-2")}
    assert hashes == {
        "cell-0": 0xEFF067B7477E861D,
        "cell-1": 0x0B3800BD9A0238D9,
        "cell-2": 0xE49CC663F4AD5479,
    }
    assert cells("cell-0", "cell-1", "cell-2").name_of("alice") == "cell-0"
    assert cells("cell-2", "cell-1", "cell-0").name_of("alice") == "cell-0"


def test_a_new_cell_takes_an_equal_share_and_no_other_user_moves() -> None:
    former, present = cells("cell-0", "cell-1"), cells("cell-0", "cell-1", "cell-2")
    moved = Counter(present.name_of(user) for user in USERS if present.name_of(user) != former.name_of(user))
    assert moved.keys() == {"cell-2"}
    assert 0.30 < moved["cell-2"] / len(USERS) < 0.37


@pytest.mark.parametrize("user_id", [None, "", "system", "shared-knowledge", "alicé", 5])
def test_what_is_in_every_cell_has_no_cell(user_id: object) -> None:
    with pytest.raises(InvalidInputError, match="must name a user of one cell"):
        cells("cell-0").name_of(user_id)


def test_a_client_uses_the_cell_of_its_user_with_paths_from_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "cells.toml"
    file.write_text('[cell-0]\ndata_dir = "data"\n[cell-1]\nendpoint = "tcp://127.0.0.1:1"\nkey_file = "c.key"\n')
    read = read_cells(file).by_name
    assert read["cell-0"].data_dir == str(tmp_path / "data")
    assert read["cell-1"].key_file == str(tmp_path / "c.key")
    file.write_text('[cell-0]\ndata_dir = "data"\n')
    with (
        MemoryClient("alice", cells=file) as client,
        pytest.raises(Exception, match=f"no daemon serves {tmp_path}/data"),
    ):
        client.stats()
    with pytest.raises(InvalidInputError, match="must name a user of one cell"):
        MemoryClient(cells=file)
    with pytest.raises(InvalidInputError, match="omit data_dir"):
        MemoryClient("alice", cells=file, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no cell"),
        ("[cell-0]", "'cell-0' needs"),
        ('["cell 0"]\ndata_dir = "d"', "'cell 0' needs a name"),
        ('[cell-0]\ndata_dir = "d"\nendpoint = "e"', "either data_dir or endpoint"),
        ('[cell-0]\ndatadir = "d"', "cell-0: datadir: no such setting"),
        ("[cell-0]\ndata_dir = 3", "cell-0: data_dir: Expected"),
        ("cell-0 = 3", "cell-0: settings: Expected `object`"),
        ("[", "is not valid TOML"),
    ],
)
def test_a_bad_file_of_cells_is_reported(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "cells.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=says.replace("[", r"\[")):
        read_cells(file)


def test_a_missing_file_of_cells_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_cells(tmp_path / "none.toml")


def test_events_wait_in_the_spool_of_their_cell_and_go_to_no_other(tmp_path: Path) -> None:
    away = Cells({name: Cell(data_dir=str(tmp_path / name)) for name in ("cell-0", "cell-1")})
    by_cell = {away.name_of(user): user for user in USERS[:20]}
    publisher = CellPublisher(away, tmp_path / "spool")
    for user in by_cell.values():
        publisher.publish(event(user))
    system = publisher.publish(event("system", on_behalf_of=by_cell["cell-1"]))
    assert system == "system-0"
    publisher.close(0.0)
    with pytest.raises(SettingsError, match="may have events for other cells"):
        CellPublisher(cells("cell-0", "cell-1", "cell-2"), tmp_path / "spool")
    again = CellPublisher(away, tmp_path / "spool")
    assert {name: report.spooled for name, report in again.flush(0.0).items()} == {"cell-0": 1, "cell-1": 2}
    again.close(0.0)


def test_without_a_spool_unsent_events_are_reported_and_every_publisher_is_closed(tmp_path: Path) -> None:
    away = Cells({name: Cell(data_dir=str(tmp_path / name)) for name in ("cell-0", "cell-1")})
    publisher = CellPublisher(away)
    for user in USERS[:20]:
        publisher.publish(event(user))
    with pytest.raises(RelayUnavailableError):
        publisher.close(0.0)
    threads = {thread.name for thread in threading.enumerate()}
    assert "relay-publisher" not in threads


@pytest.mark.parametrize("fields", [{"user_id": "system"}, {"user_id": ""}, {"user_id": "shared-knowledge"}, {}])
def test_an_event_that_names_no_user_is_refused(fields: dict[str, str]) -> None:
    with CellPublisher(cells("cell-0")) as publisher, pytest.raises(MalformedEventError, match="must name a user"):
        publisher.publish({"event_type": "chat.user_msg", **fields})


def test_a_cell_without_a_relay_gets_no_events() -> None:
    with (
        CellPublisher(Cells({"cell-0": Cell(endpoint="tcp://127.0.0.1:1")})) as publisher,
        pytest.raises(SettingsError, match="needs a relay"),
    ):
        publisher.publish(event("alice"))
