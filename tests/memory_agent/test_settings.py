"""Settings come from defaults, TOML, environment and flags (in increasing precedence), and errors name the setting."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from memory_agent.errors import SettingsError
from memory_agent.settings import (
    REMOVED,
    RENAMED,
    EmbedderSettings,
    OllamaEmbedder,
    OpenAIEmbedder,
    Settings,
    former_of,
    load_settings,
)


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_sources_all_settings_have_their_defaults() -> None:
    assert load_settings(None, {}) == Settings()


def test_later_sources_win_one_setting_at_a_time(tmp_path: Path) -> None:
    file = written(tmp_path, "[recall]\nvector_weight = 0.1\ncandidates = 50\nmin_score = 0.3\n")
    environment = {"MEMORY_AGENT_RECALL__VECTOR_WEIGHT": "0.2", "MEMORY_AGENT_RECALL__CANDIDATES": "60", "HOME": "/x"}
    recall = load_settings(file, environment, {"recall.vector_weight": 0.4}).recall
    assert (recall.vector_weight, recall.candidates, recall.min_score) == (0.4, 60, 0.3)


def test_a_variable_may_hold_a_list_or_plain_text() -> None:
    environment = {"MEMORY_AGENT_DAEMON__LISTEN": '["tcp://127.0.0.1:0"]', "MEMORY_AGENT_EMBEDDER__FOLDER": "/srv/x"}
    settings = load_settings(None, environment)
    assert settings.daemon.listen == ("tcp://127.0.0.1:0",)
    assert settings.embedder.folder == "/srv/x"


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("[recal]\nvector_weight = 0.1\n", "recal"),
        ("[recall]\nalhpa = 0.1\n", "recall.alhpa"),
        ("[recall]\nvector_weight = 2.0\n", "recall.vector_weight"),
        ('[recall]\nmode = "psychic"\n', "recall.mode"),
        ("[relay.journal]\nretention_age_s = -1\n", "relay.journal.retention_age_s"),
        ('[relay.encryption]\nkeys_folder = "/keys"\n', "relay.encryption"),
        ("[recall\n", "--config"),
    ],
)
def test_errors_in_a_file_are_named(tmp_path: Path, text: str, setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(written(tmp_path, text), {})
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("variable", "setting"),
    [("MEMORY_AGENT_RECALL__ALHPA", "recall.alhpa"), ("MEMORY_AGENT_DATA_DIR__X", "data_dir")],
)
def test_errors_in_the_environment_are_named(variable: str, setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {variable: "0.1"})
    assert caught.value.setting.startswith(setting)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        load_settings(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("text", "environment", "overrides"),
    [
        ("[recall]\nalpha = 0.25\n", {}, {}),
        ("", {"MEMORY_AGENT_RECALL__ALPHA": "0.25"}, {}),
        ("", {"MEMORY_AGENT_RECALL": "{alpha = 0.25}"}, {}),
        ("", {}, {"recall.alpha": 0.25}),
        ("[recall]\nalpha = 0.1\n", {"MEMORY_AGENT_RECALL__ALPHA": "0.2"}, {"recall.alpha": 0.25}),
    ],
)
def test_a_former_name_is_read_with_a_warning(
    tmp_path: Path, text: str, environment: dict[str, str], overrides: dict[str, float]
) -> None:
    with pytest.warns(FutureWarning, match=r"recall\.alpha was renamed to recall\.vector_weight") as caught:
        recall = load_settings(written(tmp_path, text), environment, overrides).recall
    assert recall.vector_weight == 0.25
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]


@pytest.mark.parametrize(
    ("text", "environment", "overrides"),
    [
        ("[recall]\nalpha = 0.25\nvector_weight = 0.25\n", {}, {}),
        ("", {"MEMORY_AGENT_RECALL__ALPHA": "0.25", "MEMORY_AGENT_RECALL__VECTOR_WEIGHT": "0.25"}, {}),
        ("", {}, {"recall.vector_weight": 0.25, "recall.alpha": 0.25}),
    ],
)
def test_a_former_name_beside_the_present_one_is_refused(
    tmp_path: Path, text: str, environment: dict[str, str], overrides: dict[str, float]
) -> None:
    with pytest.raises(SettingsError, match=r"former name of recall\.vector_weight") as caught:
        load_settings(written(tmp_path, text), environment, overrides)
    assert caught.value.setting == "recall.alpha"


@pytest.mark.parametrize(("first", "then"), [("alpha", "vector_weight"), ("vector_weight", "alpha")])
def test_a_later_layer_overrides_a_setting_under_either_name(tmp_path: Path, first: str, then: str) -> None:
    file = written(tmp_path, f"[recall]\n{first} = 0.1\n")
    with pytest.warns(FutureWarning, match="renamed"):
        assert load_settings(file, {f"MEMORY_AGENT_RECALL__{then.upper()}": "0.25"}).recall.vector_weight == 0.25
    with pytest.warns(FutureWarning, match="renamed"):
        assert load_settings(file, {}, {f"recall.{then}": 0.25}).recall.vector_weight == 0.25


@pytest.mark.parametrize("text", [".25", "+.25", "0.25"])
def test_a_number_may_begin_with_its_point(text: str) -> None:
    assert load_settings(None, {"MEMORY_AGENT_RECALL__VECTOR_WEIGHT": text}).recall.vector_weight == 0.25


def test_every_renamed_setting_leads_to_one_that_exists() -> None:
    for former, present in RENAMED.items():
        tree = msgspec.to_builtins(Settings())
        for name in present.split("."):
            tree = tree[name]
        assert former not in RENAMED.values()


@pytest.mark.parametrize(
    ("text", "environment", "overrides"),
    [
        ("[recall]\ncentering = false\nvector_weight = 0.25\n", {}, {}),
        ("[recall]\nvector_weight = 0.25\n", {"MEMORY_AGENT_RECALL__CENTERING": "false"}, {}),
        ("", {"MEMORY_AGENT_RECALL": "{centering = true, vector_weight = 0.25}"}, {}),
        ("[recall]\nvector_weight = 0.25\n", {}, {"recall.centering": "never a valid value"}),
        ("[recall]\ncentering = 1\n", {"MEMORY_AGENT_RECALL__CENTERING": "1"}, {"recall.vector_weight": 0.25}),
    ],
)
def test_a_removed_setting_is_left_out_with_one_warning(
    tmp_path: Path, text: str, environment: dict[str, str], overrides: dict[str, object]
) -> None:
    with pytest.warns(FutureWarning, match=r"recall\.centering was removed and has no effect") as caught:
        settings = load_settings(written(tmp_path, text), environment, overrides)
    assert settings == load_settings(None, {}, {"recall.vector_weight": 0.25})
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]


def test_a_caller_may_take_the_warning_of_a_removed_setting(tmp_path: Path) -> None:
    said: list[str] = []
    load_settings(written(tmp_path, "[recall]\ncentering = false\nalpha = 0.2\n"), {}, warn=said.append)
    assert [message.split()[1] for message in said] == ["recall.alpha", "recall.centering"]


def test_no_setting_is_both_removed_and_present() -> None:
    present = msgspec.to_builtins(Settings())
    for setting in REMOVED:
        table, name = setting.split(".")
        assert name not in present[table]
        assert setting not in RENAMED


def test_an_override_cannot_reach_into_a_value() -> None:
    with pytest.raises(SettingsError, match="not a table"):
        load_settings(None, {"MEMORY_AGENT_LOG_LEVEL": "info"}, {"log_level.deeper": 1})


def test_a_settings_file_without_a_type_of_embedder_is_read_as_before(tmp_path: Path) -> None:
    file = tmp_path / "memory-agent.toml"
    file.write_text('[embedder]\nfolder = "models/bge"\nquery_prefix = "query: "\n')
    embedder = load_settings(file).embedder
    assert embedder == EmbedderSettings(folder="models/bge", query_prefix="query: ")


def test_embedders_are_chosen_by_type() -> None:
    settings = load_settings(
        environment={"MEMORY_AGENT_EMBEDDER__TYPE": "openai", "MEMORY_AGENT_EMBEDDER__DIMENSIONS": "256"},
        overrides={"former_embedder.type": "ollama", "former_embedder.model": "all-minilm"},
    )
    assert settings.embedder == OpenAIEmbedder(dimensions=256)
    assert former_of(settings) == OllamaEmbedder(model="all-minilm")
    assert former_of(Settings()) is None
    assert former_of(Settings(embedder=OpenAIEmbedder())) == EmbedderSettings(allow_download=False)


@pytest.mark.parametrize(
    ("overrides", "setting", "said"),
    [
        ({"embedder.type": "ollama", "embedder.folder": "x"}, "embedder.folder", "it applies only to local"),
        ({"embedder.url": "https://x"}, "embedder.url", "contradicts embedder.type"),
        ({"embedder.type": "openai", "embedder.api_key": "sk-secret"}, "embedder.api_key", "regex"),
        ({"embedder.model": "e5-small-v2", "embedder.folder": "x"}, "embedder", "remove one of them"),
        ({"embedder.type": "word2vec"}, "embedder.type", "word2vec"),
        ({"embedder.type": "gemini", "embedder.batch": 2048}, "embedder.batch", "<= 100"),
        ({"embedder.type": "ollama", "embedder.dimension": 3}, "embedder.dimension", "no such setting"),
    ],
)
def test_settings_of_embedders_that_cannot_be_used_are_named(
    overrides: dict[str, object], setting: str, said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environment={}, overrides=overrides)
    assert caught.value.setting == setting
    assert said in str(caught.value)
    assert "sk-secret" not in str(caught.value)
