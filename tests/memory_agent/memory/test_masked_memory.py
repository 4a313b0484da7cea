"""Whatever the input, no file of a memory contains a secret."""

from __future__ import annotations

from pathlib import Path

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from relay import MaskingSettings

TOKEN = "ghp_" + "Ab1" * 12
PASSWORD = "wr0ng-h0rse-Battery"


def bytes_below(folder: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_no_input_leaves_a_secret_in_any_file(tmp_path: Path, embedder: Embedder) -> None:
    folder = tmp_path / "alice"
    with Memory.open(folder, embedder=embedder) as memory:
        event = {"event_type": "user_input", "user_id": "alice", "payload": {"text": f"deploy with {TOKEN} please"}}
        assert memory.ingest([event]).kept == 1
        assert memory.ingest([event]).duplicates == 1
        record = memory.remember(
            f"The registry takes {TOKEN}",
            title=f"token {TOKEN}",
            tags=[TOKEN],
            metadata={"login": {"password": PASSWORD}},
        )
        assert record.text == "The registry takes [masked:github_token]"
        assert record.metadata == {"login": {"password": "[masked:password]"}}
        memory.runs.begin(f"push with {TOKEN}", "run-1")
        memory.runs.step("run-1", f"logged in as root with password={PASSWORD}")
        memory.runs.end("run-1", "completed", f"pushed to https://root:{PASSWORD}@example.com/r.git")
        found = memory.recall("which token does the registry take", mode="lexical")
        memory.feedback(found.recall_id, [found.memories[0].record.id], comment=f"{TOKEN} was right")
        masked = memory.stats().masked
    assert set(masked) == {"github_token", "password", "url_password"}
    stored = bytes_below(folder)
    assert b"[masked:github_token]" in stored
    assert TOKEN.encode() not in stored
    assert PASSWORD.encode() not in stored


def test_masking_can_be_switched_off(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "a", embedder=embedder, masking_settings=MaskingSettings(enabled=False)) as memory:
        assert memory.remember(f"use {TOKEN}").text == f"use {TOKEN}"
        assert memory.stats().masked == {}


def test_personal_numbers_are_masked_by_a_setting_and_marked_in_a_preview_without_it(
    tmp_path: Path, embedder: Embedder
) -> None:
    card, phone = "4111 1111 1111 1111", "+44 20 7946 0958"
    personal = MaskingSettings(personal=("card", "phone"))
    with Memory.open(tmp_path / "a", embedder=embedder, masking_settings=personal) as memory:
        assert memory.remember(f"card {card}", metadata={"at": phone}).text == "card [masked:card]"
        event = {"event_type": "user_input", "user_id": "a", "payload": {"text": f"call me at {phone} after six"}}
        assert memory.ingest([event]).kept == 1
        preview = memory.shared.preview("Payments", f"card {card}")
        assert (preview.content.summary, preview.masked, preview.mentions) == ("card [masked:card]", {"card": 1}, ())
        assert memory.stats().masked == {"card": 1, "phone": 2}
    assert [one for one in (card, phone) if one.encode() in bytes_below(tmp_path / "a")] == []
    with Memory.open(tmp_path / "b", embedder=embedder) as memory:
        preview = memory.shared.preview("Payments", memory.remember(f"card {card}, call {phone}").text)
    assert [(one.kind, one.text) for one in preview.mentions] == [("card", card), ("phone", phone)]


def test_masked_secrets_are_counted_durably_per_user(tmp_path: Path, embedder: Embedder) -> None:
    """Masks in events are counted too, because the relay masks secrets before a daemon's memory receives the events."""
    folder = tmp_path / "alice"
    masked = {"event_type": "user_input", "user_id": "alice", "payload": {"text": "deploy with [masked:github_token]"}}
    noise = {
        "event_type": "made.up",
        "user_id": "alice",
        "payload": {"text": "[masked:jwt] and [masked:nothing_known]"},
    }
    with Memory.open(folder, embedder=embedder) as memory:
        assert memory.ingest([masked]).kept == 1
        assert memory.ingest([masked]).duplicates == 1
        memory.ingest([noise])
        memory.remember(f"again with {TOKEN}")
    with Memory.open(folder, embedder=embedder) as memory:
        assert memory.stats().masked == {"github_token": 2, "jwt": 1, "other": 1}


def test_a_limited_number_of_dropped_event_types_is_counted(tmp_path: Path, embedder: Embedder) -> None:
    with Memory.open(tmp_path / "alice", embedder=embedder) as memory:
        for number in range(60):
            event = {"event_type": f"made.up{number}", "user_id": "alice", "payload": {"text": "a noise of some words"}}
            memory.ingest([event, {**event, "event_id": "again"}])
        stats = memory.stats()
    assert sum(stats.dropped_types.values()) == sum(stats.events_dropped.values()) > 60
    assert len(stats.dropped_types) == 51
    assert stats.dropped_types["*"] > stats.dropped_types["made.up0"] > 0
