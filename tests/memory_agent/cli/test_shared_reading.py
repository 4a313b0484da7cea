"""Test the display of a shared item: the relevant passage, the attached file, and the reason for its recall."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import cli

Run = Callable[..., Result]

QUESTION = "which port does the billing proxy listen on?"
ANSWER = "The billing proxy listens on port 7443, behind the load balancer."
SUMMARY = "How the services of the platform team are run."
OTHER = "The archive of the {} team is copied to the second site every night, and its checksums are compared at noon. "
TEAMS = ("design", "sales", "legal", "support", "research", "travel", "hiring", "press", "safety", "music")
BEGINNING = "\n\n".join(OTHER.format(team) * 6 for team in TEAMS)
MANUAL = f"# Manual\n\n{SUMMARY}\n\n{BEGINNING}\n\n## Billing\n\n{ANSWER}\n\n{OTHER.format('last') * 20}"
ANN = ("--user", "ann")
BOTH = ("--tier", "local", "--tier", "global")


@pytest.fixture
def on_files(tmp_path: Path) -> Run:
    folder = tmp_path / "data"
    return lambda *words: CliRunner().invoke(cli, [*words, "--data-dir", str(folder)])


@pytest.fixture
def item(on_files: Run, tmp_path: Path) -> dict[str, Any]:
    """A long document with an attached file, published by ann."""
    manual, rules, out = (tmp_path / name for name in ("manual.md", "rules.toml", "preview.json"))
    manual.write_text(MANUAL)
    rules.write_bytes(b"[rules]")
    attached = ("--attach", str(rules))
    shown = on_files(
        "shared", "preview", str(manual), "--body", "--reference", "https://wiki", *attached, "--out", str(out), *ANN
    )
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count(SUMMARY) == 1
    done = on_files("shared", "confirm", str(out), *attached, "--yes", *ANN, "--json")
    published: dict[str, Any] = json.loads(done.stdout)
    return published


def test_a_long_item_is_shown_where_it_answers_and_in_full_by_its_id(on_files: Run, item: dict[str, Any]) -> None:
    assert len(item["body"]) > 8_000
    file = f"   attachment: rules.toml, 7 B, SHA-256 {item['attachment']['sha256']}"
    fetch = f"   to fetch it: memory-agent shared attachment {item['id']} --out FILE"
    for words in (("recall", QUESTION, *BOTH), ("shared", "search", QUESTION)):
        lines = on_files(*words, "--user", "ben").stdout.splitlines()
        assert f"   | {ANSWER}" in lines
        assert sum(len(line) for line in lines if line.startswith("   | ")) < 1_200
        told = next(line for line in lines if "shared show" in line)
        assert told.endswith(f" of {len(item['body']):,} characters; full text: memory-agent shared show {item['id']}")
        assert "   reference: https://wiki" in lines
        assert lines.index(file) + 1 == lines.index(fetch)
    whole = on_files("shared", "show", item["id"], "--user", "ben").stdout
    assert (whole.count(ANSWER), whole.count(SUMMARY), whole.count("| Manual")) == (1, 1, 0)
    assert whole.count("archive of the last team") == 20
    assert "characters;" not in whole
    assert whole.startswith("   just now · document · ")
    assert "score" not in whole


def test_a_block_has_room_for_more_than_one_long_item(on_files: Run, item: dict[str, Any]) -> None:
    block = on_files("recall", QUESTION, *BOTH, "--context", "--user", "ben").stdout
    lines = block.splitlines()
    assert f"| {ANSWER}" in lines
    assert f"with a file of 7 bytes · id {item['id']}\n" in block
    assert "| file: rules.toml" in lines
    assert "memory-agent shared show ID" in lines[3]
    assert "memory-agent shared attachment ID --out FILE" in lines[3]
    assert len(block) < 2_000


def test_a_recall_says_why_an_item_has_its_place(on_files: Run, item: dict[str, Any]) -> None:
    (found,) = json.loads(on_files("recall", QUESTION, *BOTH, "--user", "ben", "--json").stdout)["memories"]
    cut_off = found["explanation"].pop("cut_off")
    why = {"vector": found["score"], "boost": 0.0, "policy": "public", "class": "new", "is_reserved": False}
    assert found["explanation"] == why
    assert found["relevance"] >= cut_off > 0
    assert ANSWER in found["record"]["text"][found["passage_at"] :][:200]
    told = {key: found["shared"][key] for key in ("item_id", "reference", "attachment")}
    assert told == {"item_id": item["id"], "reference": "https://wiki", "attachment": item["attachment"]}
    lines = [
        line.strip() for line in on_files("recall", QUESTION, *BOTH, "--explain", "--user", "ben").stdout.split("\n")
    ]
    assert f"ranked after all your memories: relevant but not yet proven (cut-off {cut_off:g})" in lines
    assert f"relevance {found['relevance']:.2f}" in lines
    alone = on_files("recall", QUESTION, "--tier", "global", "--explain", "--user", "ben").stdout
    assert "relevance" in alone
    assert "memories that pass" not in alone
    assert any(line.endswith("not yet rated; not yet proven by use; access public") for line in lines)
    assert any(line.startswith("attachment: rules.toml") for line in lines)


def test_a_memory_that_says_its_title_is_previewed_once(on_files: Run) -> None:
    said = "Staging needs the VPN"
    record = json.loads(on_files("remember", said, "--user", "ann", "--json").stdout)
    lines = on_files("shared", "preview", "--memory", record["id"], "--user", "ann").stdout.splitlines()
    assert lines[2:6] == ["title", f"   {said}", "summary", " = the title"]
