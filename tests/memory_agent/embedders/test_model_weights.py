"""The model is found in each supported place, and files with a wrong checksum are rejected."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from bert_reference import list_checksums, write_random_model
from embedder_inputs import INT8, OFFLINE

from memory_agent.embedders import open_embedder
from memory_agent.embedders.cache import fetch_model, model_status
from memory_agent.embedders.schemes import choose_scheme
from memory_agent.embedders.weights import (
    CONFIG,
    PACKAGE,
    PINNED,
    TOKENIZER,
    WEIGHTS,
    Model,
    find_model,
    prefixes_of,
)
from memory_agent.errors import ModelChecksumError, ModelError, ModelMissingError, SettingsError
from memory_agent.settings import EmbedderSettings


def named(folder: Path) -> EmbedderSettings:
    return msgspec.structs.replace(INT8, folder=str(folder))


def copy_model(official: Model, folder: Path) -> Path:
    assert official.folder is not None
    folder.mkdir(parents=True)
    for name in (WEIGHTS, TOKENIZER):
        shutil.copyfile(official.folder / name, folder / name)
    return folder


def flip_a_bit(path: Path) -> None:
    """Flip a bit in the middle of the file, and restore the file's timestamps."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_installed_package_carries_the_pinned_model(tmp_path: Path) -> None:
    model = find_model(OFFLINE, tmp_path)
    assert model.origin == "package"
    assert model.sums == PINNED


def test_a_named_folder_comes_first(tmp_path: Path, official: Model) -> None:
    folder = copy_model(official, tmp_path / "mine")
    model = find_model(named(folder), tmp_path / "cache")
    assert (model.origin, model.folder) == ("folder", folder)


def test_without_a_model_anywhere_the_error_contains_advice(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match="memory-agent model fetch") as caught:
        open_embedder(OFFLINE, cache=tmp_path, package="")
    assert caught.value.retryable
    assert model_status(OFFLINE, cache=tmp_path, package="").state == "missing"


def test_a_package_that_is_not_installed_is_not_an_error_by_itself(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError):
        find_model(OFFLINE, tmp_path, "no-such-distribution-of-weights")


def test_a_named_folder_without_a_model_is_not_replaced_by_another(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match="set in the settings"):
        open_embedder(named(tmp_path), cache=tmp_path / "cache", package=PACKAGE)


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_one_flipped_bit_is_refused(tmp_path: Path, official: Model, name: str) -> None:
    folder = copy_model(official, tmp_path / "mine")
    flip_a_bit(folder / name)
    with pytest.raises(ModelChecksumError) as caught:
        open_embedder(named(folder), cache=tmp_path / "cache")
    assert caught.value.path == str(folder / name)
    assert caught.value.expected_sha256 == PINNED[name]
    assert model_status(named(folder), cache=tmp_path / "cache").state == "refused"


def test_a_file_changed_after_it_was_verified_is_noticed_even_with_a_cached_graph(
    tmp_path: Path, official: Model
) -> None:
    folder = copy_model(official, tmp_path / "mine")
    assert fetch_model(named(folder), cache=tmp_path / "cache").state == "ready"
    open_embedder(named(folder), cache=tmp_path / "cache").close()
    flip_a_bit(folder / WEIGHTS)  # size, inode and mtime are unchanged
    with pytest.raises(ModelChecksumError):
        open_embedder(named(folder), cache=tmp_path / "cache")


def test_a_damaged_memo_of_verified_files_only_costs_time(tmp_path: Path, official: Model) -> None:
    folder = copy_model(official, tmp_path / "mine")
    fetch_model(named(folder), cache=tmp_path / "cache")
    (tmp_path / "cache" / "verified.json").write_bytes(b"{broken")
    assert model_status(named(folder), cache=tmp_path / "cache").state == "ready"


def other_model(tmp_path: Path, official: Model) -> Path:
    assert official.folder is not None
    folder = tmp_path / "other"
    write_random_model(folder, official.folder / TOKENIZER, pooling="mean")
    return folder


def test_another_model_needs_its_own_checksums(tmp_path: Path, official: Model) -> None:
    folder = other_model(tmp_path, official)
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(ModelChecksumError):
        find_model(named(folder), tmp_path / "cache")


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER, CONFIG, "1_Pooling/config.json"])
def test_each_file_of_another_model_must_be_listed(tmp_path: Path, official: Model, name: str) -> None:
    folder = other_model(tmp_path, official)
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    (folder / "SHA256SUMS").write_text("\n".join(line for line in lines if not line.endswith(f" {name}")))
    with pytest.raises(ModelError, match="lists no SHA-256 for"):
        find_model(named(folder), tmp_path / "cache")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_another_model_that_does_not_match_its_checksums_is_refused(tmp_path: Path, official: Model, name: str) -> None:
    folder = other_model(tmp_path, official)
    flip_a_bit(folder / name)
    with pytest.raises(ModelChecksumError):
        find_model(named(folder), tmp_path / "cache")


@pytest.mark.parametrize(
    ("key", "value"), [("model_type", "mpnet"), ("hidden_act", "relu"), ("position_embedding_type", "relative_key")]
)
def test_a_model_of_an_unknown_architecture_is_refused_by_name(
    tmp_path: Path, official: Model, key: str, value: str
) -> None:
    folder = other_model(tmp_path, official)
    config = json.loads((folder / CONFIG).read_text()) | {key: value}
    (folder / CONFIG).write_text(json.dumps(config))
    list_checksums(folder)
    with pytest.raises(ModelError, match=value):
        find_model(named(folder), tmp_path / "cache")


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"embedder\.scheme: must be .*, not 'int4'"):
        choose_scheme("int4")


@pytest.mark.parametrize(
    ("machine", "flags", "scheme", "kernels"),
    [
        ("x86_64", {"avx512_vnni"}, "int8", "vnni"),
        ("x86_64", {"avx2", "avx_vnni"}, "int8", "vnni"),
        ("AMD64", {"avx2"}, "float32", "float"),
        ("aarch64", set(), "int8", "dot"),
        ("arm64", set(), "int8", "dot"),
        ("riscv64", set(), "float32", "float"),
    ],
)
def test_auto_uses_int8_only_where_it_does_not_saturate(
    machine: str, flags: set[str], scheme: str, kernels: str
) -> None:
    choice = choose_scheme("auto", machine=machine, flags=frozenset(flags))
    assert (choice.scheme, choice.kernels) == (scheme, kernels)


def test_int8_can_be_forced_and_reports_that_it_saturates() -> None:
    choice = choose_scheme("int8", machine="x86_64", flags=frozenset())
    assert (choice.scheme, choice.kernels) == ("int8", "saturating")
    assert "saturates" in choice.reason


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("all-MiniLM-L6-v2", "", ""),
        ("e5-small-v2", "query: ", "passage: "),
        ("multilingual-E5-small", "query: ", "passage: "),
        ("bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("bge-small-zh-v1.5", "", ""),
        ("somee5model", "", ""),
    ],
)
def test_models_that_were_trained_with_prefixes_get_them(model: str, query: str, passage: str) -> None:
    assert prefixes_of(model, EmbedderSettings()) == (query, passage)
    assert prefixes_of(model, EmbedderSettings(query_prefix="ask: ", passage_prefix="")) == ("ask: ", "")


def test_the_prefixes_of_the_settings_reach_the_model(tmp_path: Path, model_cache: Path) -> None:
    chosen = msgspec.structs.replace(INT8, query_prefix="query: ")
    embedder = open_embedder(chosen, cache=model_cache)
    plain = open_embedder(INT8, cache=model_cache)
    assert np.array_equal(embedder.embed_query("kiln"), plain.embed_query("query: kiln"))
    assert np.array_equal(embedder.embed_texts(["kiln"]), plain.embed_texts(["kiln"]))
    assert embedder.info.stamp.startswith(f"{plain.info.stamp}|")
    embedder.close()
    plain.close()


def test_a_prefix_that_leaves_no_room_is_refused(model_cache: Path) -> None:
    chosen = msgspec.structs.replace(INT8, max_tokens=16, passage_prefix="word " * 20)
    with pytest.raises(ModelError, match=r"embedder\.passage_prefix"):
        open_embedder(chosen, cache=model_cache)
