"""Saved results are read back unchanged, and other files are rejected."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from memory_agent.errors import InvalidInputError
from memory_agent.evaluation import (
    Answer,
    Dataset,
    History,
    Item,
    Plan,
    Question,
    Run,
    ranking_settings,
    read_results,
    results_file,
    write_results,
)
from memory_agent.settings import EmbedderSettings, IngestSettings, RecallSettings, Settings
from memory_agent.version import VERSION

ASKED = Question(id="q1", text="secret question", category="1", relevant={"a": 2})
LEFT_OUT = Question(id="q2", text="open", category="1", relevant={})
HISTORY = History(user="0", items=(Item(id="a", text="secret", session="s"),), questions=(ASKED, LEFT_OUT))
DATASET = Dataset(name="own", digest="d" * 64, histories=(HISTORY,))
ANSWER = Answer(
    user="0",
    question=ASKED,
    ranked=(("a", "s"), ("other", None)),
    metrics={"recall@1": 1.0, "mrr": 1 / 3},
    took_ms=1.23456,
    degraded=("deadline",),
    same={"a": (("b", "t"),)},
)


def run_of(*, settings_known: bool = True) -> Run:
    plan = Plan(dataset=DATASET, settings=Settings(), mode="vector", top_k=7)
    return Run(plan, (ANSWER,), 1.0, 1, "model|sha|float32|x|384", embedded=True, settings_known=settings_known)


def test_results_round_trip(tmp_path: Path) -> None:
    write_results(run_of(), tmp_path / "kept.jsonl")
    results = read_results(tmp_path / "kept.jsonl")
    header, (line,) = results.header, results.lines
    assert (header.dataset, header.digest, header.users, header.left_out) == ("own", "d" * 64, ("0",), ("q2",))
    assert (header.mode, header.top_k, header.version, header.embedded) == ("vector", 7, VERSION, True)
    assert (line.id, line.user, line.category, line.relevant) == ("q1", "0", "1", {"a": 2})
    assert (line.ranked, line.metrics, line.degraded) == (ANSWER.ranked, ANSWER.metrics, ("deadline",))
    assert (line.took_ms, line.same) == (1.235, ANSWER.same)
    assert "secret" not in (tmp_path / "kept.jsonl").read_text()


def test_settings_that_affect_ranking_are_kept_and_paths_are_not() -> None:
    settings = Settings(
        recall=RecallSettings(vector_weight=0.25),
        embedder=EmbedderSettings(folder="/srv/model", max_tokens=64),
        ingest=IngestSettings(signals="/srv/table.toml", min_text_chars=9),
    )
    kept = ranking_settings(settings)
    assert kept["recall"] == msgspec.to_builtins(settings.recall)
    assert (kept["embedder"]["max_tokens"], kept["ingest"]["min_text_chars"]) == (64, 9)
    assert "/srv" not in repr(kept)


def test_the_settings_of_a_foreign_daemon_are_recorded_as_unknown(tmp_path: Path) -> None:
    write_results(run_of(settings_known=False), tmp_path / "kept.jsonl")
    assert read_results(tmp_path / "kept.jsonl").header.settings is None


def test_settings_are_read_under_their_former_names_too(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    write_results(run_of(), file)
    now = read_results(file)
    file.write_text(file.read_text().replace('"vector_weight"', '"alpha"'))
    assert now.header.settings is not None
    assert read_results(file).header.settings == now.header.settings


def test_an_older_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("older")
    with pytest.raises(ZeroDivisionError), results_file(file) as place:
        place.write_text(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ["kept.jsonl"]
    assert file.read_text() == "older"
    with results_file(file) as place:
        place.write_text("new")
        assert file.read_text() == "older"
    assert (file.read_text(), [path.name for path in tmp_path.iterdir()]) == ("new", ["kept.jsonl"])


@pytest.mark.parametrize("name", ["absent/kept.jsonl", "."])
def test_a_place_that_cannot_be_written_is_named_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be written"), results_file(tmp_path / name):
        pytest.fail("nothing may be measured")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "kept.jsonl:1: is not a line of a results file"),
        ('{"conversation": {}}', "kept.jsonl:1: is not a line of a results file"),
        ("\xff", "kept.jsonl:1"),
    ],
)
def test_another_file_is_refused_by_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "kept.jsonl").write_text(content, encoding="latin-1")
    with pytest.raises(InvalidInputError) as caught:
        read_results(tmp_path / "kept.jsonl")
    assert said in str(caught.value)


def test_a_cut_line_and_another_version_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    write_results(run_of(), file)
    whole = file.read_text()
    file.write_text(whole[:-20])
    with pytest.raises(InvalidInputError, match=r"kept.jsonl:2: is not a line of a results file"):
        read_results(file)
    file.write_text(whole.replace("memory-agent-results/1", "memory-agent-results/9"))
    with pytest.raises(InvalidInputError, match="format: expected memory-agent-results/1"):
        read_results(file)
