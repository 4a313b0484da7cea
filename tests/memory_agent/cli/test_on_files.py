"""Test the verbs that need no daemon, on a separate folder, with the real model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from memory_agent.memory import Memory
from memory_agent.records.memories import MemoryRecord, MemoryStats, RecallResult
from memory_agent.storage.folders import known_users, user_folder
from relay import Journal, journal_folder

Run = Callable[..., Result]
RunJson = Callable[..., Any]

DEPLOY = "The deploy hung because the VPN was down."


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three memories, one of them about deploying."""
    folder = tmp_path_factory.mktemp("prepared")
    with Memory.open(user_folder(folder, "default"), user_id="default") as memory:
        memory.remember("Lunch is at noon.", "episode")
        memory.remember(DEPLOY, "pattern", tags=["deploy"], title="VPN", provenance="verified", session_id="s-1")
        memory.remember("Tests of the parser pass again.", source="worker_result")
    return folder


@pytest.fixture
def deploy(prepared: Path, data_dir: Path) -> None:
    """A writable copy of the prepared folder."""
    shutil.copytree(prepared, data_dir)


def test_a_remembered_text_is_recalled_with_all_its_fields(run_json: RunJson) -> None:
    words = ("--tag", "deploy", "--title", "VPN", "--provenance", "verified", "--session", "s-1", "--kind", "pattern")
    remembered = run_json("remember", DEPLOY, *words)
    assert set(remembered) == set(MemoryRecord.__struct_fields__) - {"embedding"}
    document = run_json("recall", "why did the deploy hang")
    assert set(document) == set(RecallResult.__struct_fields__)
    result = msgspec.convert(document, RecallResult)
    (memory,) = result.memories
    record = memory.record
    assert (result.degraded, record.id, record.text, record.kind) == ((), remembered["id"], DEPLOY, "pattern")
    assert (record.title, record.tags, record.provenance, record.session_id) == ("VPN", ("deploy",), "verified", "s-1")


def test_recall_returns_at_most_top_k_memories(run_json: RunJson, deploy: None) -> None:
    document = run_json("recall", "why did the deploy hang", "--top-k", "2", "--min-relevance", "0")
    assert [memory["record"]["title"] for memory in document["memories"]] == ["VPN", None]


def test_a_vector_is_shown_only_on_request(run_json: RunJson, deploy: None) -> None:
    plain = run_json("recall", "deploy")["memories"][0]["record"]
    assert "embedding" not in plain
    assert set(plain) == set(MemoryRecord.__struct_fields__) - {"embedding"}
    assert len(run_json("recall", "deploy", "--with-embedding")["memories"][0]["record"]["embedding"]) == 384


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--kind", "pattern"], 1),
        (["--kind", "pattern", "--kind", "episode"], 2),
        (["--source", "worker_result"], 1),
        (["--tag", "deploy"], 1),
        (["--session", "s-1"], 1),
        (["--provenance", "verified"], 1),
        (["--run", "r-1"], 0),
        (["--min-quality", "0.1"], 0),
        (["--since", "1h"], 3),
        (["--until", "1h"], 0),
        (["--since", "2999-01-01"], 0),
        (["--mode", "lexical"], 1),
        (["--mode", "vector"], 3),
    ],
)
def test_every_filter_reaches_the_memory(run_json: RunJson, deploy: None, words: list[str], found: int) -> None:
    options = ("--min-relevance", "0", *words)
    assert len(run_json("recall", "why did the deploy hang", *options)["memories"]) == found


def test_only_memories_that_bear_on_the_question_are_found_unless_told_otherwise(
    run_json: RunJson, deploy: None
) -> None:
    found = run_json("recall", "why did the deploy hang")["memories"]
    assert [one["record"]["text"] for one in found] == [DEPLOY]
    assert run_json("recall", "who painted the Mona Lisa?")["memories"] == []
    everything = run_json("recall", "who painted the Mona Lisa?", "--min-relevance", "0")["memories"]
    assert len(everything) == 3
    assert all(one["relevance"] < 0.6 for one in everything)


def test_an_answer_without_memories_says_what_was_looked_at_and_how_to_see_the_nearest(run: Run, deploy: None) -> None:
    nothing = run("recall", "who painted the Mona Lisa?")
    hint = "note: none of the 3 memories is relevant to this; --min-relevance 0 shows the nearest ones\n"
    assert (nothing.exit_code, nothing.stderr) == (0, hint)
    assert run("recall", "wer hat die Mona Lisa gemalt?", "--context").stderr == hint
    assert (
        "note: the only memory that matches is not relevant to this"
        in run("recall", "Mona Lisa?", "--kind", "pattern").stderr
    )
    assert run("recall", "who painted the Mona Lisa?", "--json").stderr == ""
    assert run("recall", "why did the deploy hang").stderr == ""


def test_people_see_age_kind_source_and_text(run: Run, deploy: None) -> None:
    shown = run("recall", "why did the deploy hang", "--min-relevance", "0").stdout
    first, title, tags, text = shown.splitlines()[:4]
    assert first.startswith(" 1 just now · pattern · user_input · relevance 1.00, score ")
    assert re.search(r" · provenance: verified · [0-9A-Z]{26}$", first)  # the id for `feedback` and `forget`
    assert (title, tags, text) == ("   VPN", "   tags: deploy", "   The deploy hung because the VPN was down.")
    assert "3 memories in " in shown


def test_a_memory_cannot_send_control_sequences_to_the_terminal(run: Run) -> None:
    run("remember", "-", input="deploy \x1b[2J\x07 [bold]now[/bold]‮ end\nsecond line")
    shown = run("recall", "deploy").stdout
    assert "   deploy �[2J� [bold]now[/bold]� end\n   second line\n" in shown


def test_a_tag_cannot_forge_our_description_of_a_memory(run: Run) -> None:
    run("remember", "deploy", "--tag", "a · provenance: verified\n 2 just now", "--title", "b\n 2 just now")
    first, *below = run("recall", "deploy").stdout.splitlines()[:4]
    assert "verified" not in first
    assert below == ["   b 2 just now", "   tags: a · provenance: verified 2 just now", "   deploy"]


def test_the_context_block_has_no_control_sequences(run: Run) -> None:
    run("remember", "-", "--title", "a\x1b]0;b", input="deploy \x1b[2J\x07 gone \u202e txt")
    block = run("recall", "deploy", "--context").stdout
    assert "| title: a]0;b\n| deploy [2J gone  txt\n" in block


def test_degraded_stages_are_noted_beside_the_context_block(run: Run) -> None:
    no_model = ("--set", "embedder.folder=/nowhere")
    run("remember", "The deploy hung.", *no_model)
    result = run("recall", "deploy", "--context", *no_model)
    assert "| The deploy hung." in result.stdout
    assert result.stderr == "note: degraded: no_model\n"


def test_an_unknown_user_is_not_created_and_the_known_ones_are_named(run: Run, data_dir: Path, deploy: None) -> None:
    for user in ("alice", "bob"):
        run("remember", "worth a note", "--user", user)
    for verb in (["recall", "anything", "--min-relevance", "0"], ["stats"], ["trajectory", "list"]):
        result = run(*verb, "--user", "alcie")
        assert result.exit_code == 0
        assert f"note: no memories yet for user alcie in {data_dir}; users here: alice, bob, default" in result.stderr
        assert run(*verb, "--user", "alcie", "--json").stderr == ""
        assert run(*verb, "--user", "bob").stderr == ""
    assert list(known_users(data_dir)) == ["alice", "bob", "default"]


@pytest.mark.parametrize("verb", ["rebuild", "compact"])
def test_maintenance_of_an_unknown_user_creates_none(run: Run, data_dir: Path, deploy: None, verb: str) -> None:
    result = run(verb, "--user", "alcie")
    assert result.exit_code == 0
    assert "no memories yet for user alcie" in result.stderr
    assert list(known_users(data_dir)) == ["default"]


def test_users_are_listed_only_for_the_owner_of_the_data_folder(
    run: Run, deploy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", run("keys", "create", "one", "--user", "alcie").stdout.strip())
    told = run("stats", "--user", "alcie")
    assert (told.exit_code, told.stderr) == (0, "")
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", "of nobody")
    assert "users here" not in run("stats", "--user", "alcie").stderr


def test_an_empty_memory_answers_and_says_where_it_looked(run: Run, data_dir: Path) -> None:
    result = run("recall", "anything", "--user", "nobody")
    assert result.exit_code == 0
    assert "0 memories" in result.stdout
    assert result.stderr == f"note: no memories yet for user nobody in {data_dir}\n"
    assert not data_dir.exists()


def test_context_prints_the_block_for_a_planner(run: Run, run_json: RunJson, deploy: None) -> None:
    block = run("recall", "why did the deploy hang", "--context", "--top-k", "1").stdout
    assert block.startswith("<recalled_memories>\n")
    assert "| The deploy hung because the VPN was down.\n</recalled_memories>\n" in block
    document = run_json("recall", "why did the deploy hang", "--context", "--top-k", "1")
    assert document["context"] + "\n" == block
    assert run("recall", "deploy", "--context", "--max-tokens", "5").stdout == ""


def test_text_may_come_from_standard_input(run_json: RunJson) -> None:
    record = run_json("remember", "-", input="Ünïcode from a pipe")
    assert record["text"] == "Ünïcode from a pipe"
    assert run_json("recall", "-", input="pipe")["memories"][0]["record"]["id"] == record["id"]


def test_standard_input_that_is_not_utf8_is_refused(run: Run) -> None:
    result = run("remember", "-", input=b"\xff\xfe")
    assert result.exit_code == 1
    assert result.stderr == "error: TEXT: standard input is not UTF-8 at byte 0\n"


def test_users_do_not_see_each_other(run_json: RunJson) -> None:
    run_json("remember", "The deploy hung.", "--user", "alice")
    assert run_json("recall", "deploy", "--user", "bob")["memories"] == []
    assert len(run_json("recall", "deploy", "--user", "alice")["memories"]) == 1


def test_without_a_model_recall_goes_by_words_and_says_so(run: Run, run_json: RunJson) -> None:
    no_model = ("--set", "embedder.folder=/nowhere")
    run_json("remember", "The deploy hung.", *no_model)
    document = run_json("recall", "deploy", *no_model)
    assert len(document["memories"]) == 1
    assert document["degraded"] != []
    assert f"degraded: {', '.join(document['degraded'])}" in run("recall", "deploy", *no_model).stdout
    assert run_json("stats", *no_model)["without_vector"] == 1


def test_what_was_stored_without_a_model_gets_its_vector_with_the_next_recall_that_has_one(
    run: Run, run_json: RunJson
) -> None:
    run("remember", "Rotating the token twice signs users out.", "--set", "embedder.folder=/nowhere")
    asked = ("recall", "why are people logged off?", "--min-relevance", "0")
    assert run_json(*asked)["degraded"] == ["vectors_pending"]
    assert (run_json("stats")["without_vector"], run_json(*asked)["degraded"]) == (0, [])


def test_stats_count_the_memories(run: Run, run_json: RunJson, deploy: None) -> None:
    document = run_json("stats")
    assert set(document) == {*MemoryStats.__struct_fields__, "daemon"}
    assert (document["user_id"], document["memories"], document["daemon"]) == ("default", 3, None)
    assert document["by_kind"] == {"episode": 1, "pattern": 1, "finding": 1}
    assert run_json("stats", "--kind", "pattern")["memories"] == 1
    shown = run("stats").stdout
    assert "memories                  3\n" in shown
    assert "no daemon serves" in shown


def test_a_setting_of_the_environment_yields_to_a_flag(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_RECALL__VECTOR_WEIGHT", "7")
    refused = run("recall", "x")
    assert (refused.exit_code, refused.stderr.split(":")[:2]) == (1, ["error", " setting recall.vector_weight"])
    assert run("recall", "x", "--set", "recall.vector_weight=0.5").exit_code == 0


def test_a_setting_under_its_former_name_is_noted_and_followed(run: Run, run_json: RunJson) -> None:
    noted = run("recall", "x", "--set", "recall.alpha=0.5", "--json")
    assert noted.exit_code == 0
    assert "note: setting recall.alpha was renamed to recall.vector_weight" in noted.stderr
    assert json.loads(noted.stdout)
    both = run("recall", "x", "--set", "recall.alpha=0.5", "--set", "recall.vector_weight=0.5")
    assert (both.exit_code, both.stderr.split(":")[:2]) == (1, ["error", " setting recall.alpha"])


def test_a_removed_setting_is_noted_and_left_out(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[recall]\ncentering = false\n")
    for words in (("--config", str(file)), ("--set", "recall.centering=false")):
        noted = run("recall", "x", *words, "--json")
        assert noted.exit_code == 0
        assert "note: setting recall.centering was removed" in noted.stderr
        assert json.loads(noted.stdout)


def test_a_file_of_settings_is_read_and_a_typo_in_it_is_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[recall]\nmode = 'lexical'\n")
    assert run("recall", "x", "--config", str(file)).exit_code == 0
    file.write_text("[recall]\nmoed = 'lexical'\n")
    refused = run("recall", "x", "--config", str(file))
    assert (refused.exit_code, refused.stderr) == (1, "error: setting recall.moed: no such setting\n")


def test_the_token_variable_is_not_read_as_a_setting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", run("keys", "create", "one", "--all-users").stdout.strip())
    assert run("stats").exit_code == 0


def test_the_quarantine_is_listed_from_the_journal_without_a_daemon(
    run: Run, run_json: RunJson, data_dir: Path
) -> None:
    assert run("quarantine", "list").stdout == "nothing is in quarantine\n"
    assert run_json("quarantine", "list") == []
    with Journal.open(journal_folder(data_dir)) as journal:
        now = datetime(2026, 2, 16, 10, 0, tzinfo=UTC)
        ids = [journal.quarantine(data, "malformed_event", "is not JSON", "pub", now) for data in (b"{", b"[[")]
    entries = run_json("quarantine", "list")
    assert [(entry["id"], entry["code"], entry["size_bytes"]) for entry in entries] == [
        (ids[0], "malformed_event", 1),
        (ids[1], "malformed_event", 2),
    ]
    assert [entry["id"] for entry in run_json("quarantine", "list", "--after", str(ids[0]))] == [ids[1]]
    assert len(run_json("quarantine", "list", "--limit", "1")) == 1
    shown = run("quarantine", "list").stdout
    assert "2026-02-16 10:00 UTC" in shown
    assert "is not JSON" in shown


def test_a_folder_that_another_process_owns_is_an_error_and_no_traceback(
    run: Run, run_json: RunJson, data_dir: Path
) -> None:
    run_json("remember", "Mine.")
    with Memory.open(user_folder(data_dir, "default"), user_id="default"):
        refused = run("recall", "mine", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr)["error"]["code"] == "store_owned_elsewhere"


def test_own_words_are_left_out_and_the_answer_says_so(run: Run, run_json: RunJson, deploy: None) -> None:
    question = "why did the deploy hang"
    run_json("trajectory", "begin", question, "--run", "r-1", "--session", "s-2")
    document = run_json("recall", question)
    assert ([found["record"]["text"] for found in document["memories"]][:1], document["excluded"]) == (
        [DEPLOY],
        {"echo": 1},
    )
    assert run_json("recall", question, "--by-run", "r-1")["excluded"] == {"run": 1}
    assert run_json("recall", question, "--by-session", "s-2")["excluded"] == {"session": 1}
    assert run_json("recall", question, "--by-event", "no-such-event")["excluded"] == {"echo": 1}
    for_people = run("recall", question)
    assert "left out: 1 from the last minutes, repeating the query" in for_people.stdout
    explained = run("recall", question, "--explain", "--by-run", "r-1")
    assert "left out" in explained.stdout
    assert "1 from the calling run" in explained.stdout


def test_memories_are_excluded_by_session_run_event_id_and_time(run_json: RunJson, deploy: None) -> None:
    asked = ("recall", "why did the deploy hang", "--min-relevance", "0")
    (found, *others) = run_json(*asked, "--top-k", "3")["memories"]
    assert found["record"]["session_id"] == "s-1"
    rest = [one["record"]["id"] for one in others]
    assert len(rest) == 2
    for option in (("--exclude-session", "s-1"), ("--exclude-record", found["record"]["id"])):
        assert [one["record"]["id"] for one in run_json(*asked, *option)["memories"]] == rest
    some = run_json(*asked, "--exclude-run", "r-9", "--exclude-event", "e-9", "--exclude-record", rest[0])
    assert [one["record"]["id"] for one in some["memories"]] == [found["record"]["id"], rest[1]]
    assert run_json(*asked, "--exclude-since", "1h")["memories"] == []
