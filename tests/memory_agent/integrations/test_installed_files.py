"""Test that completions are installed in the right folders, and that files are replaced atomically."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from memory_agent.integrations import MARK, completion_path, install_file, remove_file

HOME = Path("/home/ann")


@pytest.mark.parametrize(
    ("shell", "variables", "path"),
    [
        ("bash", {}, "/home/ann/.local/share/bash-completion/completions/memory-agent"),
        ("bash", {"XDG_DATA_HOME": "/data"}, "/data/bash-completion/completions/memory-agent"),
        ("bash", {"BASH_COMPLETION_USER_DIR": "/own", "XDG_DATA_HOME": "/data"}, "/own/completions/memory-agent"),
        ("zsh", {"XDG_DATA_HOME": "/data"}, "/data/zsh/site-functions/_memory-agent"),
        ("zsh", {"XDG_DATA_HOME": "relative"}, "/home/ann/.local/share/zsh/site-functions/_memory-agent"),
        ("fish", {"XDG_CONFIG_HOME": "/config"}, "/config/fish/completions/memory-agent.fish"),
    ],
)
def test_a_completion_is_where_the_shell_looks(shell: str, variables: dict[str, str], path: str) -> None:
    assert str(completion_path(shell, HOME, variables)) == path


def test_a_reader_never_sees_half_of_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "script"
    texts = {f"{MARK} {letter * 200_000}" for letter in "ab"}
    install_file(path, min(texts))
    seen: set[str] = set()
    is_done = threading.Event()

    def read() -> None:
        while not is_done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        for text in sorted(texts, reverse=True):
            assert install_file(path, text)
    is_done.set()
    reader.join()
    assert seen <= texts
    assert os.listdir(tmp_path) == ["script"]


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 253)  # the file's name is valid, but the temporary file's name is too long
    with pytest.raises(OSError) as error:
        install_file(path, MARK)
    assert (error.value.filename, os.listdir(tmp_path)) == (str(path), [])


def test_a_file_in_another_encoding_belongs_to_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FileExistsError, match="was not written by memory-agent"):
        remove_file(path)
    assert path.read_bytes() == b"\xff\xfe"
