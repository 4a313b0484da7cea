"""Test the ablation on data sets of a few texts, with the real model and stores."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from agent_runs import write_runs
from chats import BATCHES, write_chat
from conversations import write_locomo

from memory_agent.settings import RecallSettings
from ops.bench import ablation

NOW = datetime(2026, 11, 23, tzinfo=UTC)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of the three data sets, each with two or three groups."""
    folder = tmp_path / "data"
    write_runs(folder / "swe_runs_dev.json")
    for chat in ("1", "2", "3"):
        write_chat(folder / "beam_dev" / chat, BATCHES)
    shutil.move(write_locomo(tmp_path, 3), folder / "locomo_dev.json")
    return folder


def test_each_line_switches_off_what_it_names() -> None:
    lines = {line.name: line for line in ablation.lines()}
    assert (lines["shipped"].recall, lines["shipped"].words, lines["shipped"].mode) == (
        RecallSettings(),
        True,
        "hybrid",
    )
    shipped = msgspec.structs.asdict(RecallSettings())
    for name, line in lines.items():
        changed = {key for key, value in msgspec.structs.asdict(line.recall).items() if value != shipped[key]}
        if name.startswith("shipped without"):
            assert len(changed) == 1 or (not line.words and not changed), name
        elif name.startswith("+"):
            assert changed, name
    assert {line.mode for line in lines.values()} == {"hybrid", "vector", "lexical"}
    assert not lines["cosine and words"].words


def test_the_page_has_every_line_of_every_data_set(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "PAGE", tmp_path / "ablation.md")
    assert ablation.main(["--data", str(data), "--stores", str(tmp_path / "stores")]) == 0
    page = (tmp_path / "ablation.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() == page.strip()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {9}
    names = [line.name for line in ablation.lines()]
    assert [row[0] for row in rows] == ["", *names] * 3
    assert "9 questions, 15 memories, 3 conversations." in page
    assert "6 questions, 18 memories, 3 chats." in page
    assert "2 issues." in page
    shipped = [row for row in rows if row[0] == "shipped"]
    assert [row[5:] for row in shipped] == [[""] * 4] * 3
    assert shipped[0][1] == "83.3"  # two of the questions have one turn of evidence, and the third has two
    without_words = next(row for row in rows if row[0] == "shipped without late interaction")
    assert " to " in without_words[5]


def test_without_word_vectors_the_same_query_is_ranked_by_where_its_words_occur(data: Path) -> None:
    from memory_agent.embedders import open_embedder
    from memory_agent.settings import EmbedderSettings

    embedder = open_embedder(EmbedderSettings(allow_download=False))
    try:
        plain = ablation.WithoutWords(embedder)
        text = "What did Ann buy a kiln for?"
        assert embedder.embed_query_words(text).words
        assert not plain.embed_query_words(text).words
        assert plain.embed_query(text).tobytes() == embedder.embed_query(text).tobytes()
        assert plain.info == embedder.info
    finally:
        embedder.close()


def test_a_folder_that_lacks_a_data_set_is_refused_before_anything_is_measured(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(data / "beam_dev")
    with pytest.raises(SystemExit):
        ablation.main(["--data", str(data)])
    assert ": beam_dev" in capsys.readouterr().err
