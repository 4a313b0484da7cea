"""Test `forget` without a daemon: no byte is left in the data folder, including the journal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from memory_agent.erasure.user_removal import remove_user
from memory_agent.memory import Memory
from memory_agent.storage.folders import user_folder
from memory_agent.storage.owners import Owners
from relay import Event, EventLimits, Journal, encode_event, event_from_mapping, journal_folder

Run = Callable[..., Result]
RunJson = Callable[..., Any]
NOW = datetime(2026, 11, 20, tzinfo=UTC)
SECRET = "zanzibarquokka"


def told(number: int, user_id: str, text: str, session_id: str = "s-1") -> Event:
    mapping = {
        "event_id": f"{user_id}-{number}",
        "event_type": "user_input",
        "user_id": user_id,
        "session_id": session_id,
        "timestamp": NOW,
        "payload": {"text": text, "run_id": f"run-{user_id}"},
    }
    return event_from_mapping(mapping, EventLimits(), NOW)


@pytest.fixture
def filled(data_dir: Path) -> Path:
    """Two users whose events were ingested from the journal, and one event that is still pending."""
    events = [told(number, "alice", f"{SECRET} was seen {number} times") for number in range(4)]
    events += [told(number, "bob", f"the harmless thing {number} of bob", "s-bob") for number in range(3)]
    system = told(9, "system", f"the {SECRET} of the conductor", "s-1")
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append([*events, system], NOW)
        late = told(8, "alice", f"{SECRET} came late")
        journal.append([late], NOW)
        journal.quarantine(encode_event(late), "x", "y", "memory:alice", NOW, 9)
    for user_id in ("alice", "bob"):
        with Memory.open(user_folder(data_dir, user_id), user_id=user_id) as memory:
            memory.ingest([event for event in events if event.user_id == user_id])
    owners = Owners(data_dir / "owners")
    owners.learn(("run:run-alice", "session:s-1"), "alice")
    owners.learn(("session:s-bob",), "bob")
    owners.close()
    return data_dir


def files_with(text: str, folder: Path) -> list[str]:
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and text.encode() in file.read_bytes()
    )


def test_an_erased_session_leaves_no_byte_and_others_stay(filled: Path, run_json: RunJson) -> None:
    assert "journal/data.mdb" in files_with(SECRET, filled)
    planned = run_json("forget", "--user", "alice", "--session", "s-1", "--dry-run")
    assert (planned["dry_run"], planned["memories"], planned["events"]) == (True, 4, 6)
    receipt = run_json("forget", "--user", "alice", "--session", "s-1", "--yes")
    assert (receipt["complete"], receipt["memories"], receipt["events"], receipt["quarantined"]) == (True, 4, 6, 1)
    assert receipt["ids_sha256"] == planned["ids_sha256"]
    assert files_with(SECRET, filled) == []
    assert run_json("stats", "--user", "bob")["memories"] == 3


def test_erasing_an_id_erases_its_event_and_nothing_else(filled: Path, run_json: RunJson) -> None:
    found = run_json("recall", f"{SECRET} 2", "--user", "alice", "--mode", "lexical")["memories"]
    receipt = run_json("forget", "--user", "alice", "--id", found[0]["record"]["id"], "--yes")
    assert (receipt["memories"], receipt["events"]) == (1, 1)
    assert run_json("stats", "--user", "alice")["memories"] == 3


def test_an_erased_session_takes_the_events_of_its_own_run_where_an_id_was_used_again(
    data_dir: Path, run_json: RunJson
) -> None:
    said = [
        ("conductor.run.started", {"objective": "bake the harmless bread"}, "s-1"),
        ("conductor.run.failed", {"error": "it burnt"}, None),
        ("conductor.run.started", {"objective": f"find the {SECRET}"}, "s-2"),
        ("worker.report.received", {"summary": f"{SECRET}!", "type": "heartbeat"}, None),
        ("conductor.run.completed", {"summary": f"{SECRET} was found"}, None),
    ]
    events = [
        event_from_mapping(
            {
                "event_id": f"e-{number}",
                "event_type": event_type,
                "user_id": "alice",
                "session_id": session_id,
                "timestamp": NOW + timedelta(minutes=number),
                "payload": payload | {"run_id": "run-1"},
            },
            EventLimits(),
            NOW,
        )
        for number, (event_type, payload, session_id) in enumerate(said)
    ]
    with Journal.open(journal_folder(data_dir)) as journal:
        journal.append(events, NOW)
    with Memory.open(user_folder(data_dir, "alice"), user_id="alice") as memory:
        assert memory.ingest(events).kept == 4
    receipt = run_json("forget", "--user", "alice", "--session", "s-2", "--yes")
    assert (receipt["complete"], receipt["memories"], receipt["events"]) == (True, 2, 3)
    assert files_with(SECRET, data_dir) == []
    (left,) = run_json("trajectory", "list", "--user", "alice")
    assert (left["id"], left["objective"], left["outcome"]) == ("run-1", "bake the harmless bread", "failed")
    with Journal.open(journal_folder(data_dir), readonly=True) as journal:
        assert len(journal.read(0, 10)) == 2


def test_an_unknown_id_is_named(filled: Path, run: Run, run_json: RunJson) -> None:
    planned = run_json("forget", "--user", "alice", "--id", "nope", "--dry-run")
    assert (planned["memories"], planned["unknown_ids"]) == (0, ["nope"])
    done = run("forget", "--user", "alice", "--id", "nope", "--id", "nowhere", "--yes")
    assert (done.exit_code, "no memory of alice has the id nope, nowhere" in done.stderr) == (0, True)


def test_a_receipt_is_readable_and_an_id_is_named_with_its_option(filled: Path, run: Run) -> None:
    hint = run("forget", "01KHJY9080NWG22H9Q8BBD7B80", "--user", "alice", "--yes")
    assert hint.exit_code == 2
    assert "memory ids must be passed with --id: forget --id 01KHJY9080NWG22H9Q8BBD7B80" in hint.stderr
    planned = run("forget", "--user", "alice", "--session", "s-1", "--dry-run").stdout.splitlines()
    assert planned[0] == "would be erased, of alice"
    assert [" ".join(line.split()) for line in planned[1:4]] == [
        "memories 4",
        "events in the journal 6",
        "events in quarantine 1",
    ]
    done = run("forget", "--user", "alice", "--session", "s-1", "--yes").stdout.splitlines()
    assert done[0] == "erased, of alice"
    assert "not covered:" in done
    assert "- unsent events in the spools and windows of publishers, and of hooks on other machines" in done
    assert not [line for line in done if "dry_run" in line or "False" in line]


def test_a_whole_user_is_erased(filled: Path, run_json: RunJson, run: Run) -> None:
    receipt = run_json("forget", "--user", "alice", "--user-all", "--yes")
    assert (receipt["complete"], receipt["memories"], receipt["events"], receipt["quarantined"]) == (True, 4, 6, 1)
    assert files_with(SECRET, filled) == []
    assert files_with("run-alice", filled) == []
    assert [folder.name for folder in (filled / "users").iterdir()] == ["bob"]
    assert run_json("stats", "--user", "bob")["memories"] == 3
    assert run("forget", "--user-all", "--yes").exit_code == 2


ASIDE = "replaced-20261120T000000000000"


def put_aside(data_dir: Path, *tops: str, name: str = ASIDE) -> Path:
    """Copy files to a folder like those in which `restore --replace` keeps previous files; return the new folder."""
    kept = data_dir / name
    for top in tops:
        shutil.copytree(data_dir / top, kept / top)
    return kept


@pytest.mark.parametrize("name", [ASIDE, ".restoring"])  # a killed restore leaves the second folder
def test_a_whole_user_is_erased_from_files_that_a_restore_moved_aside(
    filled: Path, run_json: RunJson, name: str
) -> None:
    kept = put_aside(filled, "users", name=name)
    receipt = run_json("forget", "--user", "alice", "--user-all", "--yes")
    assert (receipt["complete"], receipt["reason"]) == (True, None)
    assert files_with(SECRET, filled) == []
    assert [folder.name for folder in (kept / "users").iterdir()] == ["bob"]
    run_json("forget", "--user", "bob", "--user-all", "--yes")
    assert not kept.exists()


@pytest.mark.parametrize("name", [ASIDE, ".restoring"])
def test_files_that_a_restore_moved_aside_keep_an_erasure_incomplete(
    filled: Path, run: Run, run_json: RunJson, name: str
) -> None:
    kept = put_aside(filled, "users/alice", name=name)
    ended = run("forget", "--user", "alice", "--session", "s-1", "--yes", "--json")
    by_session = json.loads(ended.stdout)
    assert ended.exit_code == 1
    assert (by_session["complete"], by_session["memories"]) == (False, 4)
    assert kept.name in by_session["reason"]
    in_words = run("forget", "--user", "alice", "--session", "s-1", "--yes")
    assert in_words.exit_code == 1
    assert in_words.stdout.splitlines()[-1].startswith("not complete yet: ")
    assert run_json("forget", "--user", "bob", "--session", "s-bob", "--yes")["complete"] is True
    put_aside(filled, "journal", name=name)
    of_user = json.loads(run("forget", "--user", "alice", "--user-all", "--yes", "--json").stdout)
    assert of_user["complete"] is False
    assert kept.name in of_user["reason"]
    shutil.rmtree(kept)
    assert files_with(SECRET, filled) == []
    assert run_json("forget", "--user", "alice", "--user-all", "--yes")["complete"] is True


def test_a_user_is_off_the_disk_before_the_receipt(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change to the users' folder is fsynced; the test records the folder's content at each fsync."""
    seen: list[list[str]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")) == (filled / "users").resolve():
            seen.append(sorted(folder.name.partition("-")[0] for folder in (filled / "users").iterdir()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    assert remove_user(filled, "alice")
    assert seen == [[".erased", "bob"], ["bob"]]


def test_nothing_is_erased_without_confirmation(filled: Path, run: Run, run_json: RunJson) -> None:
    assert run("forget", "--user", "alice", "--kind", "episode", input="n\n").exit_code != 0
    assert run_json("stats", "--user", "alice")["memories"] == 4
    assert run("forget", "--user", "alice").exit_code == 2


def test_without_a_terminal_the_error_names_the_option_to_confirm(filled: Path, run: Run, run_json: RunJson) -> None:
    asked = run("forget", "--user", "alice", "--kind", "episode", input="")
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    assert run_json("stats", "--user", "alice")["memories"] == 4
    assert run("forget", "--user", "alice", "--kind", "episode", input="y\n").exit_code == 0


def test_expired_memories_are_erased_with_their_events_and_a_dry_run_names_the_rule(
    filled: Path, run_json: RunJson, run: Run
) -> None:
    rules = ("--set", 'retention.rules=[{name = "said", kinds = ["episode"], age_s = 3600}]')
    asked = ("forget", "--user", "alice", "--expired")
    before = files_with(SECRET, filled)
    planned = run_json(*asked, "--dry-run", *rules)
    assert (planned["by_rule"], planned["events"], planned["complete"]) == ({"said": 4}, 4, False)
    assert run_json("stats", "--user", "alice", *rules)["memories"] == 4  # the dry run erased nothing
    assert files_with(SECRET, filled) == before
    receipt = run_json(*asked, "--yes", *rules)
    assert (receipt["by_rule"], receipt["events"], receipt["complete"]) == ({"said": 4}, 4, True)
    assert receipt["ids_sha256"] == planned["ids_sha256"]
    stats = run_json("stats", "--user", "alice")
    assert (stats["memories"], stats["expired"]) == (0, {"said": 4})
    assert run(*asked, "--yes").exit_code == 2  # no rule


def test_an_erasure_interrupted_before_the_journal_is_finished_by_the_next(filled: Path, run_json: RunJson) -> None:
    from memory_agent.erasure.request import Selection

    with Memory.open(user_folder(filled, "alice"), user_id="alice") as memory:
        memory.erasure.begin(memory.erasure.plan(Selection(session_id="s-1"), NOW))
    with Memory.open(user_folder(filled, "alice"), user_id="alice") as memory:
        assert memory.stats().memories == 0
    assert files_with(SECRET, filled) == ["journal/data.mdb"]
    run_json("forget", "--user", "alice", "--id", "01KHJY9080NWG22H9Q8BBD7B80", "--yes")
    assert files_with(SECRET, filled) == []
