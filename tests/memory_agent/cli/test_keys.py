"""Test `keys create|list|assign|rotate|revoke`, and other commands with a key."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from relay import Broker, Credentials, Scope, UnauthorizedError, read_key_file
from relay.disk import verify_checksum

Run = Callable[..., Result]
RunJson = Callable[..., Any]


def test_a_token_is_printed_once_and_permits_its_scopes(run: Run, run_json: RunJson, data_dir: Path) -> None:
    result = run("keys", "create", "laptop", "--user", "alice", "--scope", "recall")
    assert result.exit_code == 0, result.stderr
    token = result.stdout.strip()
    principal = Credentials(data_dir).of_token(token.encode())
    assert (principal.key_id, principal.user_id, principal.scopes) == ("laptop", "alice", {Scope.RECALL})
    listed = run("keys", "list").stdout + json.dumps(run_json("keys", "list"))
    assert "laptop" in listed
    assert token not in listed
    assert [(key["id"], key["user_id"], key["revoked"]) for key in run_json("keys", "list")] == [
        ("local", None, None),
        ("laptop", "alice", None),
    ]


def test_a_revoked_key_is_listed_as_revoked_and_refused(run: Run, run_json: RunJson, data_dir: Path) -> None:
    token = run_json("keys", "create", "laptop", "--all-users")["token"]
    assert run("keys", "revoke", "laptop").stdout == "revoked laptop\n"
    assert run_json("keys", "list")[1]["revoked"] is not None
    with pytest.raises(UnauthorizedError):
        Credentials(data_dir).of_token(token.encode())


def test_a_curve_key_goes_to_a_private_file_with_the_daemons_public_key(
    run: Run, data_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "planner.key"
    result = run("keys", "create", "planner", "--user", "alice", "--curve", "--out", str(file))
    document = read_key_file(file)
    assert document.secret not in result.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Credentials(data_dir).of_curve(document.public).user_id == "alice"
    assert json.loads(verify_checksum((data_dir / "curve.json").read_bytes()))[0] == document.server
    assert run("keys", "create", "other", "--user", "alice", "--out", str(file)).exit_code == 2


@pytest.mark.parametrize("curve", [False, True])
def test_a_key_names_organisations_and_a_tier(
    run: Run, run_json: RunJson, data_dir: Path, tmp_path: Path, curve: bool
) -> None:
    file = tmp_path / "bob.key"
    words = ("bob", "--user", "bob", "--org", "labs", "--org", "acme", "--tier", "pro", "--out", str(file))
    assert run("keys", "create", *words, "--scope", "recall,share", *(["--curve"] if curve else [])).exit_code == 0
    assert run("keys", "rotate", "bob", "--out", str(file)).exit_code == 0
    document, credentials = read_key_file(file), Credentials(data_dir)
    found = credentials.of_curve(document.public) if curve else credentials.of_token(document.token.encode())
    assert found == ("bob", "bob", {Scope.RECALL, Scope.SHARE}, {"org:acme", "org:labs", "tier:pro"})
    local, bob = run_json("keys", "list")
    assert (bob["scopes"], bob["orgs"], bob["tier"]) == (["recall", "share"], ["acme", "labs"], "pro")
    assert (local["scopes"], local["orgs"], local["tier"]) == (sorted(Scope), [], None)
    columns, *rows = (re.split(" {2,}", line) for line in run("keys", "list").stdout.splitlines()[1:])
    assert columns == ["id", "user", "scopes", "orgs", "tier", "person", "by", "created", "days", "revoked"]
    assert [row[:5] for row in rows] == [
        ["local", "all", ", ".join(sorted(Scope)), "-", "-"],
        ["bob", "bob", "recall, share", "acme, labs", "pro"],
    ]
    revoked = run_json("keys", "revoke", "bob")
    assert (revoked["orgs"], revoked["tier"]) == (["acme", "labs"], "pro")


def test_the_keys_of_a_user_have_one_person(run: Run, run_json: RunJson) -> None:
    for words in (("bob", "--user", "bob", "--person", "bob-k"), ("bob-2", "--user", "bob"), ("ci", "--user", "ci")):
        assert run("keys", "create", *words).exit_code == 0
    assert {key["id"]: key["person"] for key in run_json("keys", "list")} == {
        "local": None, "bob": "bob-k", "bob-2": "bob-k", "ci": None,
    }  # fmt: skip
    refused = run("keys", "create", "bob-3", "--user", "bob", "--person", "other")
    assert (refused.exit_code, "the keys of bob belong to the person bob-k" in refused.stderr) == (2, True)
    assert run("keys", "assign", "bob", "ci", "--person", "bob").stdout == "bob, bob-2, ci: person bob\n"
    assert [key["person"] for key in run_json("keys", "assign", "bob-2", "--no-person")] == [None, None]
    assert [(key["person"], key["age_days"]) for key in run_json("keys", "list")][-1] == ("bob", 0)
    assert run("keys", "create", "bob-3", "--user", "bob", "--person", "other").exit_code == 0
    assert "belongs to no person" in run("keys", "assign", "local", "--person", "bob").stderr


def test_a_key_shares_only_where_its_scopes_say_so(run: Run, run_json: RunJson, data_dir: Path) -> None:
    token = run("keys", "create", "laptop", "--user", "alice").stdout.strip()
    assert Credentials(data_dir).of_token(token.encode()).scopes == {Scope.PUBLISH, Scope.RECALL}
    for scope in Scope:
        key = run_json("keys", "create", f"only-{scope}", "--all-users", "--scope", scope.value)
        assert Credentials(data_dir).of_token(key["token"].encode()).scopes == {scope}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["create", "a"], "--user ID or --all-users"),
        (["create", "a", "--user", "alice", "--all-users"], "specify either --user ID or --all-users"),
        (["create", "a", "--all-users", "--scope", "recall,everything"], "everything is not a scope"),
        (["create", "a", "--all-users", "--scope", ""], "not a scope"),
        (["create", "a", "--user", "alice", "--scope", "recall,metrics"], "the scope metrics requires --all-users"),
        (["create", "a", "--user", "system"], "require a key for all users"),
        (["create", "a", "--user", "alice", "--org", "acme", "--org", "a b"], "org: must be 1 to 64 ASCII letters"),
        (["create", "a", "--user", "alice", "--tier", ""], "tier: must be 1 to 64 ASCII letters"),
        (["create", "local", "--all-users"], "a key with this name exists"),
        (["create", "a", "--all-users", "--person", "ann"], "--person requires --user"),
        (["create", "a", "--user", "alice", "--person", "a b"], "person: must be 1 to 64 ASCII letters"),
        (["assign", "a", "--person", "ann"], "no such key"),
        (["assign", "a"], "specify either --person NAME or --no-person"),
        (["revoke", "a"], "no such key; to list the keys: memory-agent keys list"),
        (["revoke", "local"], "keys rotate local"),
        (["rotate", "a"], "no such key"),
    ],
)
def test_invalid_combinations_are_usage_errors(run: Run, words: list[str], reason: str) -> None:
    result = run("keys", *words)
    assert result.exit_code != 0
    assert reason in result.stderr


def test_events_are_published_with_a_key_file_of_one_user(run: Run, run_json: RunJson, data_dir: Path) -> None:
    key = data_dir.parent / "bob.key"
    run("keys", "create", "bob", "--user", "bob", "--scope", "publish", "--out", str(key))
    lines = "".join(
        json.dumps({"event_type": "chat.user_msg", "payload": {"text": "hello"}, **fields}) + "\n"
        for fields in ({}, {"user_id": "alice"})
    )
    with Broker(data_dir):
        result = run("publish", "--key-file", str(key), "--json", input=lines)
        refused = run("publish", "--key-file", str(data_dir / "no.key"), input=lines)
    document = json.loads(result.stdout)
    assert document["acked_through"] == {"bob": 1}
    assert [line["reason"] for line in document["bad_lines"]] == [
        "the key bob is for another user; omit the user, or use that user's key"
    ]
    assert refused.exit_code == 1
    assert f"file not found: {data_dir / 'no.key'}" in refused.stderr


def test_a_rotated_key_is_printed_or_replaces_its_file(run: Run, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "bob.key"
    run("keys", "create", "bob", "--user", "bob", "--out", str(file))
    former = read_key_file(file).token
    assert run("keys", "rotate", "bob", "--out", str(file)).exit_code == 0
    latter = read_key_file(file).token
    assert Credentials(data_dir).of_token(latter.encode()).user_id == "bob"
    with pytest.raises(UnauthorizedError):
        Credentials(data_dir).of_token(former.encode())
    printed = run("keys", "rotate", "bob").stdout.strip()
    assert Credentials(data_dir).of_token(printed.encode()).user_id == "bob"
    run("keys", "create", "eve", "--user", "eve")
    assert "does not contain the key eve" in run("keys", "rotate", "eve", "--out", str(file)).stderr


def test_the_folders_own_key_is_rotated_into_its_file_and_not_printed(
    run: Run, run_json: RunJson, data_dir: Path
) -> None:
    run("keys", "create", "bob", "--user", "bob")  # also creates the folder's own key
    assert run_json("keys", "rotate", "local") == {"id": "local", "file": str(data_dir / "token")}
    token = (data_dir / "token").read_bytes()
    assert Credentials(data_dir).of_token(token).key_id == "local"
    assert token.decode() not in run("keys", "rotate", "local").stdout


def test_a_key_is_enforced_without_a_daemon_too(run: Run, run_json: RunJson, data_dir: Path) -> None:
    key = data_dir.parent / "bob.key"
    run("keys", "create", "bob", "--user", "bob", "--scope", "publish,recall", "--out", str(key))
    run("remember", "A duck sits in the mailroom")
    shown = ("--key-file", str(key))
    assert run_json("recall", "duck", *shown)["memories"] == []
    assert run("remember", "A goose is in the attic", *shown).exit_code == 0
    assert [run_json("stats", *words)["user_id"] for words in (shown, ("--user", "bob"))] == ["bob", "bob"]
    assert [run_json("stats", *words)["memories"] for words in (shown, ("--user", "default"))] == [1, 1]
    for words, code in (
        (("recall", "duck", "--user", "default"), "user_not_allowed"),
        (("remember", "anything", "--user", "alice"), "user_not_allowed"),
        (("compact",), "scope_missing"),
        (("sona", "reset", "--yes"), "scope_missing"),
        (("forget", "--id", "x", "--yes"), "scope_missing"),
        (("quarantine", "list"), "scope_missing"),
    ):
        refused = run(*words, *shown, "--json")
        assert (words, refused.exit_code, json.loads(refused.stderr.splitlines()[-1])["error"]["code"]) == (
            words,
            1,
            code,
        )


def test_an_unknown_key_is_refused_without_a_daemon_too(
    run: Run, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, nonsense = data_dir.parent / "bob.key", data_dir.parent / "nonsense.key"
    run("keys", "create", "bob", "--user", "bob", "--out", str(key))
    run("keys", "revoke", "bob")
    nonsense.write_text("no key")
    for file, reason in (
        (key, "bob was revoked"),
        (nonsense, "not a key file"),
        (data_dir / "none", "file not found"),
    ):
        refused = run("recall", "duck", "--key-file", str(file))
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert reason in refused.stderr
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", "of another folder")
    refused = run("remember", "anything")
    assert refused.exit_code == 1
    assert "unknown token: use a valid key with --key-file" in refused.stderr
    assert not (data_dir / "users").exists()
