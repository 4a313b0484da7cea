"""`Memory.open` takes one settings struct; each keyword of earlier versions replaces a table of this struct."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from memory_agent.errors import InvalidInputError
from memory_agent.memory import Memory
from memory_agent.settings import (
    EmbedderSettings,
    IngestSettings,
    RecallSettings,
    RetentionRule,
    RetentionSettings,
    Settings,
    SettingsKeywords,
    with_keywords,
)
from relay.config import BusSettings, EncryptionSettings, EventLimits, MaskingSettings

NOW = datetime(2026, 2, 16, tzinfo=UTC)
NOWHERE = EmbedderSettings(folder="/nonexistent", allow_download=False)
SECRET = "password=hunter2hunter2"


def message(text: str) -> dict[str, object]:
    return {
        "event_type": "chat.user_msg",
        "timestamp": "2026-02-16T10:00:00Z",
        "user_id": "a",
        "payload": {"text": text},
    }


def test_every_table_that_a_memory_uses_comes_from_the_struct(tmp_path: Path) -> None:
    settings = Settings(
        embedder=NOWHERE,
        ingest=IngestSettings(max_text_chars=20),
        recall=RecallSettings(deadline_ms=123.0, max_query_chars=10),
        relay=BusSettings(events=EventLimits(max_bytes=1_000), masking=MaskingSettings(enabled=False)),
        retention=RetentionSettings(rules=(RetentionRule(name="all", age_s=3_600.0),)),
        encryption=EncryptionSettings(keys_folder=str(tmp_path / "keys")),
    )
    folder = tmp_path / "alice"
    with Memory.open(folder, settings=settings, now=NOW) as memory:
        with pytest.raises(InvalidInputError, match="at most 20"):
            memory.remember("a sentence of more than twenty characters", now=NOW)
        assert memory.usual_deadline_ms == 123.0
        with pytest.raises(InvalidInputError):
            memory.recall("more than ten characters")
        report = memory.ingest([message("x" * 2_000)])
        assert "bytes" in report.rejected[0].reason
        assert memory.remember(SECRET[:20], now=NOW).text == SECRET[:20]
        assert memory.recall("password", now=NOW).degraded
    assert (tmp_path / "keys").is_dir()
    with Memory.open(folder, settings=settings, now=NOW + timedelta(days=1)) as memory:
        assert memory.stats().memories == 0


def test_without_settings_a_memory_downloads_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_MODEL_CACHE", str(tmp_path / "cache"))
    with Memory.open(tmp_path / "alice") as memory:
        assert memory._embedder._settings.allow_download is False


def test_a_keyword_replaces_its_table_and_no_other() -> None:
    tables: dict[str, SettingsKeywords] = {
        "embedder": {"embedder_settings": NOWHERE},
        "ingest": {"ingest_settings": IngestSettings(max_text_chars=7)},
        "recall": {"recall_settings": RecallSettings(candidates=7)},
        "retention": {"retention_settings": RetentionSettings(interval_s=7.0)},
        "encryption": {"encryption_settings": EncryptionSettings(keys_folder="keys")},
    }
    for table, keywords in tables.items():
        changed = with_keywords(Settings(), keywords)
        assert getattr(changed, table) == next(iter(keywords.values()))
        assert msgspec.structs.replace(changed, **{table: getattr(Settings(), table)}) == Settings()
    limits, masking = EventLimits(max_bytes=1_000), MaskingSettings(enabled=False)
    changed = with_keywords(Settings(), {"event_limits": limits, "masking_settings": masking})
    assert changed == Settings(relay=BusSettings(events=limits, masking=masking))


def test_a_keyword_of_none_leaves_its_table_unchanged(tmp_path: Path) -> None:
    settings = Settings(recall=RecallSettings(deadline_ms=123.0), embedder=NOWHERE)
    assert with_keywords(settings, {"recall_settings": None}) == settings
    with Memory.open(tmp_path / "alice", settings=settings, recall_settings=None) as memory:
        assert memory.usual_deadline_ms == 123.0


def test_an_unknown_keyword_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'recal_settings'"):
        Memory.open(tmp_path / "alice", recal_settings=RecallSettings())  # type: ignore[call-arg]
    assert not (tmp_path / "alice").exists()


def test_the_data_folder_of_a_daemon_is_not_a_memory(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "users" / "alice") as memory:
        memory.remember("Staging needs the VPN")
    with pytest.raises(InvalidInputError, match="data folder"):
        Memory.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["users"]
