"""Test that `doctor` finds real faults and suggests remedies."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from provider_server import answer, embeds, serving
from trace_collector import collecting

from memory_agent.cli import doctor
from memory_agent.cli.doctor import Check, examine
from memory_agent.daemon.capacity import capacity_here
from memory_agent.layout import Layout
from memory_agent.settings import (
    DaemonSettings,
    EmbedderSettings,
    IngestSettings,
    JudgeSettings,
    OllamaEmbedder,
    OpenAIEmbedder,
    Settings,
    TracingSettings,
)
from relay import BrokerSettings, EncryptionSettings, RelaySettings, TableTail

NAMES = [
    "versions",
    "processor",
    "capacity",
    "model",
    "embedding",
    "recall",
    "judge",
    "traces",
    "folders",
    "encryption",
    "index",
    "tables",
    "disk",
    "sockets",
    "file handles",
    "daemon",
]


def checks(data_dir: Path, settings: Settings | None = None) -> dict[str, Check]:
    return {check.name: check for check in examine(settings or Settings(), data_dir)}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    Layout(folder).create()
    return folder


@pytest.fixture
def few_file_handles() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    yield 200
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_healthy_machine_passes_every_check(data_dir: Path) -> None:
    made = checks(data_dir)
    assert list(made) == NAMES
    assert {name: check.detail for name, check in made.items() if check.state == "failed"} == {}
    assert "memory-agent serve" in made["daemon"].detail
    assert f"numkong {importlib.metadata.version('numkong')}" in made["versions"].detail
    chosen = capacity_here(Settings().daemon)
    assert f"{chosen.dedicated_hosts} single-user hosts, {chosen.shared_hosts} shared" in made["capacity"].detail


def test_the_check_creates_no_keys_beside_those_of_users(data_dir: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = checks(data_dir, Settings(encryption=EncryptionSettings(keys_folder=str(keys))))
    assert (made["recall"].state, made["encryption"].state) == ("ok", "ok")
    assert not keys.exists()


def test_nothing_is_left_in_the_data_folder(tmp_path: Path) -> None:
    folder = tmp_path / "never"
    assert checks(folder)["folders"].state == "ok"
    assert not folder.exists()


def test_a_missing_model_fails_with_working_advice(data_dir: Path) -> None:
    settings = Settings(embedder=EmbedderSettings(folder="/nowhere"))
    made = checks(data_dir, settings)
    for name in ("model", "embedding", "recall"):
        assert made[name].state == "failed", made[name]
        assert "model fetch" not in made[name].advice, "which does not fill a folder that was named"
    assert "embedder.folder" in made["model"].advice
    assert "/nowhere" in made["model"].detail
    assert "degraded" in made["recall"].detail


def test_it_reports_which_data_leaves_the_machine(data_dir: Path) -> None:
    with serving() as server:
        server.then(embeds(OllamaEmbedder()))
        local = checks(data_dir, Settings(embedder=OllamaEmbedder(url=server.url)))
    assert (local["embedding"].state, local["recall"].state, local["processor"].state) == ("ok", "ok", "ok")
    assert local["model"].state == "ok"
    assert "stay on this machine" in local["model"].detail
    away = next(check for check in examine(Settings(embedder=OpenAIEmbedder()), data_dir) if check.name == "model")
    assert away.state == "warning"
    assert "https://api.openai.com/v1: the texts of all memories and queries leave this machine" in away.detail


def test_an_unknown_scheme_is_named(data_dir: Path) -> None:
    made = examine(Settings(embedder=EmbedderSettings(scheme="int4")), data_dir)
    processor = next(check for check in made if check.name == "processor")
    assert processor.state == "failed"
    assert "embedder.scheme" in processor.detail


def test_a_folder_that_others_may_read_fails(data_dir: Path) -> None:
    data_dir.chmod(0o755)
    check = checks(data_dir)["folders"]
    assert (check.state, check.advice) == ("failed", f"chmod go-rwx {data_dir}")


def test_a_token_that_others_may_read_fails(data_dir: Path) -> None:
    layout = Layout(data_dir)
    layout.make_token()
    (data_dir / "token").chmod(0o644)
    check = checks(data_dir)["folders"]
    assert (check.state, check.advice) == ("failed", f"chmod go-rwx {data_dir / 'token'}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_fails(data_dir: Path) -> None:
    data_dir.chmod(0o500)
    assert checks(data_dir)["folders"].state == "failed"


def test_a_data_folder_that_is_a_file_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert checks(file)["sockets"].state == "failed"


def test_a_path_too_long_for_a_socket_fails(tmp_path: Path) -> None:
    check = checks(tmp_path / ("long" * 30))["sockets"]
    assert check.state == "failed"
    assert "shorter" in check.detail + check.advice


def test_a_port_that_is_taken_fails_and_is_named(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        settings = Settings(daemon=DaemonSettings(listen=(endpoint,)))
        check = checks(data_dir, settings)["sockets"]
    assert check.state == "failed"
    assert endpoint in check.detail


def test_a_table_that_cannot_be_read_fails_with_its_path(data_dir: Path, tmp_path: Path) -> None:
    followed = TableTail(name="old", path=str(tmp_path / "wrong.db"))
    check = checks(data_dir, Settings(relay=RelaySettings(broker=BrokerSettings(tables=(followed,)))))["tables"]
    assert check.state == "failed"
    assert f"old: {tmp_path}/wrong.db: unable to open database file" in check.detail
    assert "relay.broker.tables" in check.advice
    own = tmp_path / "signals.toml"
    own.write_text("[signal.mine]\nevents = 7")
    check = checks(data_dir, Settings(ingest=IngestSettings(signals=str(own))))["tables"]
    assert check.state == "failed"
    assert f"{own}: line 2:" in check.detail


def test_it_reports_where_traces_go(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def traces(**fields: Any) -> Check:
        (found,) = examine(Settings(tracing=TracingSettings(**fields)), data_dir)
        return found

    monkeypatch.setattr(doctor, "_CHECKS", tuple(row for row in doctor._CHECKS if row[0] == "traces"))
    assert traces().detail == "off: no traces are exported"
    with collecting() as collector:
        found = traces(endpoint=collector.url, ids=True)
        assert (found.state, collector.bodies) == ("ok", [b""])
        assert "(on this machine) receives the names, figures and times" in found.detail
        assert found.detail.endswith("ids of users and memories")
        wrong = traces(endpoint=f"{collector.url}/other")
        assert (wrong.state, wrong.detail.rpartition("; ")[2]) == ("failed", "status 404")
    assert traces(endpoint=collector.url).detail.endswith("ConnectionRefusedError")
    assert traces(endpoint="http://").state == "failed"


def test_it_reports_the_input_and_the_faults_of_a_judge(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(**fields: Any) -> Check:
        (found,) = examine(Settings(judge=JudgeSettings(**fields)), data_dir)
        return found

    monkeypatch.setattr(doctor, "_CHECKS", tuple(row for row in doctor._CHECKS if row[0] == "judge"))
    assert judge().detail == "off: nothing is sent to a language model"
    assert (judge(model="m").state, judge(model="m").detail) == ("warning", "off, although judge.model is set")
    with serving() as provider:
        reply = {"choices": [{"message": {"content": '{"selected": ["m1"], "notes": ""}'}}]}
        provider.then(answer(reply), answer({}, 404), answer({}, 401))
        here = {"server": "openai", "url": provider.url, "model": "m", "candidates": 40}
        detail = f"m at {provider.url} (on this machine) receives each query and up to 40 snippets of 200 characters"
        assert (judge(**here).state, judge(**here).state) == ("ok", "failed")
        refused = judge(**here)
    assert refused.detail.startswith(f"{detail}; judge_unavailable: judge: HTTP 401: the key was refused")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    remote = judge(server="anthropic", model="m", api_key="${NO_SUCH_KEY}")
    assert "(not on this machine)" in remote.detail
    assert "NO_SUCH_KEY (judge.api_key) is not set" in remote.detail
    assert judge(**here, most=60).detail == "setting judge.most: is more than judge.candidates (40)"


def test_few_file_handles_fail_with_the_limit_to_set(data_dir: Path, few_file_handles: int) -> None:
    check = checks(data_dir)["file handles"]
    assert (check.state, check.detail) == ("failed", f"{few_file_handles} open files allowed")
    assert "ulimit -n" in check.advice


def test_a_check_is_plain_data(data_dir: Path) -> None:
    made = checks(data_dir)["versions"]
    assert msgspec.json.decode(msgspec.json.encode(made), type=Check) == made
    assert "usearch" in made.detail
