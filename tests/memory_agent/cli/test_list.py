"""Test `list`, and the filters and fields of `remember`, `recall`, `export` and `forget`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def filled(run: Run) -> None:
    notes = [
        ("staging", "rollout", "ops", "2026-02-16"),
        ("production", "rollout", "ops", "2026-02-17"),
        ("staging", "review", "web", "2026-02-18"),
    ]
    for number, (host, phase, channel, day) in enumerate(notes):
        words = ["--type", "note", "--agent", f"a-{number}", "--run", "r-1", "--session", "s-1", "--quality", "0.5"]
        meta = ["--metadata", f"host={host}", "--metadata", f"n={number}", "--metadata", '{"a"}={"b": [1, true]}']
        own = ["--id", f"m-{number}", "--phase", phase, "--channel", channel, "--at", day]
        result = run("remember", f"Note {number} on {host}", *own, *words, *meta)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"remembered m-{number} (finding, user_input)\n"


def ids(document: Any) -> list[str]:
    return [record["id"] for record in document["records"]]


def test_a_table_and_the_cursor_of_the_next_page(filled: None, run: Run) -> None:
    first = run("list", "--limit", "2")
    lines = first.stdout.splitlines()
    assert lines[0] == "2 of 3 memories"
    assert lines[2].split() == ["2026-02-18", "00:00", "UTC", "finding", "m-2", "Note", "2", "on", "staging"]
    assert lines[-1].startswith("next page: --after ")
    cursor = lines[-1].rpartition(" ")[2]
    second = run("list", "--limit", "2", "--after", cursor).stdout
    assert "m-0" in second
    assert "m-2" not in second
    assert "next page" not in second


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], ["m-2", "m-1", "m-0"]),
        (["--order", "oldest"], ["m-0", "m-1", "m-2"]),
        (["--phase", "rollout"], ["m-1", "m-0"]),
        (["--channel", "web"], ["m-2"]),
        (["--agent", "a-1"], ["m-1"]),
        (["--type", "note", "--run", "r-1", "--session", "s-1", "--min-quality", "0.5"], ["m-2", "m-1", "m-0"]),
        (["--type", "event"], []),
        (["--metadata", "host=staging"], ["m-2", "m-0"]),
        (["--metadata", "host=staging", "--metadata", "host=production"], ["m-2", "m-1", "m-0"]),
        (["--metadata", "host=staging", "--metadata", "n=0"], ["m-0"]),
        (["--metadata", 'n="0"'], []),
        (["--metadata", '{"a"}.b=true'], ["m-2", "m-1", "m-0"]),
        (["--metadata", "none=null"], []),
        (["--since", "2026-02-17", "--until", "2026-02-18"], ["m-1"]),
    ],
)
def test_filters(filled: None, run_json: RunJson, words: list[str], found: list[str]) -> None:
    document = run_json("list", *words)
    assert ids(document) == found
    assert (document["total"], document["next_cursor"]) == (len(found), None)
    order = [one for one in words if one in ("--order", "oldest")]
    if not order:
        recalled = run_json("recall", "note", "--mode", "lexical", *words)
        assert sorted(one["record"]["id"] for one in recalled["memories"]) == sorted(found)


def test_memories_of_one_title_are_told_apart_by_their_text(run: Run, run_json: RunJson) -> None:
    for text in ("Use uv here.", "Staging needs the VPN"):
        run_json("remember", text, "--title", "My rules")
    shown = run("list").stdout
    assert "My rules: Use uv here." in shown
    assert "My rules: Staging needs the VPN" in shown


@pytest.mark.parametrize("length", [4, 26, 60])
def test_an_id_is_never_broken_on_a_narrow_terminal(
    run: Run, run_json: RunJson, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    text = "Staging needs the VPN, and whoever deploys asks Ann first"
    run_json("remember", text, "--id", "x" * length)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("list").stdout.splitlines()
    assert max(map(len, shown)) <= 80
    assert any("x" * length in line for line in shown), shown
    assert sum(word in line for line in shown for word in text.split()) >= len(text.split())


def test_a_replaced_memory_comes_first_by_update(filled: None, run: Run, run_json: RunJson) -> None:
    replaced = run("remember", "Note 0 again", "--id", "m-0", "--kind", "episode")
    assert replaced.stdout == "replaced m-0 (episode, user_input)\n"
    document = run_json("list", "--order", "updated")
    assert ids(document) == ["m-0", "m-2", "m-1"]
    record = document["records"][0]
    assert (record["text"], record["timestamp"], record["phase"]) == ("Note 0 again", "2026-02-16T00:00:00Z", None)
    assert "embedding" not in record
    assert run("list", "--order", "updated", "--limit", "1").stdout.splitlines()[1].split()[0] == "updated"


def test_an_export_and_an_erasure_of_what_matches(filled: None, run: Run, run_json: RunJson, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    assert run_json("export", str(file), "--metadata", "host=staging", "--channel", "ops")["lines"] == 2
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (lines[0]["memories"], lines[1]["record"]["id"]) == (1, "m-0")
    assert run_json("import", str(file), "--user", "bob")["taken"] == 1
    assert ids(run_json("list", "--user", "bob", "--phase", "rollout", "--metadata", "host=staging")) == ["m-0"]
    receipt = run_json("forget", "--metadata", "host=staging", "--phase", "rollout", "--yes")
    assert receipt["memories"] == 1
    assert ids(run_json("list")) == ["m-2", "m-1"]
    receipt = run_json("forget", "--session", "s-1", "--channel", "none", "--yes")  # memories that match either option
    assert receipt["memories"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--limit", "0"], "--limit"),
        (["list", "--metadata", "host"], "'host' is not of the form KEY=VALUE"),
        (["list", "--metadata", 'host={"a": 1}'], "--metadata "),
        (["list", "--metadata", "a=[]"], "--metadata "),
        (["forget", "--metadata", 'host={"a": 1}', "--yes"], "--metadata "),
        (["list", "--after", "nonsense"], "--after: is not a cursor"),
        (["remember", "x", "--id", ""], "--id: is empty"),
        (["remember", "x", "--quality", "2"], "--quality"),
        (["remember", "x", "--at", "2999-01-01"], "--at: is"),
        (["remember", "x", "--metadata", "a=" + "[" * 70 + "]" * 70], "nested too deeply"),
        (["remember", "x", "--phase", "p" * 300], "--phase: has 300 bytes"),
    ],
)
def test_mistakes_are_named(filled: None, run: Run, words: list[str], message: str) -> None:
    result = run(*words)
    assert result.exit_code != 0
    assert message in result.output


def test_a_list_of_an_unknown_user_creates_nothing(run: Run, data_dir: Path) -> None:
    result = run("list", "--user", "nobody")
    assert result.exit_code == 0
    assert "0 of 0 memories" in result.stdout
    assert not (data_dir / "users" / "nobody").exists()


def test_one_memory_is_shown_whole(filled: None, run: Run, run_json: RunJson) -> None:
    long = "Staging needs the VPN. " * 30 + "\x1b[2JThe end"
    words = ["--title", "On staging", "--tag", "deploy", "--provenance", "verified"]
    run_json("remember", long, "--id", "long", "--quality", "0", *words)
    shown = run("get", "long").stdout
    assert shown.startswith("memory long\n")
    assert shown.endswith(f"\n\n{long.strip().replace(chr(27), '�')}\n")
    fields = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in shown.splitlines()[1:] if "  " in line}
    assert (fields["title"], fields["tags"], fields["quality score"]) == ("On staging", "deploy", "0")
    assert "session id" not in fields
    assert "host staging" in run("get", "m-0").stdout
    record = run_json("get", "m-0")
    assert (record["id"], record["metadata"]["host"], "embedding" in record) == ("m-0", "staging", False)


def test_an_unknown_memory_is_an_error(filled: None, run: Run) -> None:
    unknown = run("get", "m-9")
    assert unknown.exit_code == 1
    assert "m-9 not found" in unknown.stderr
