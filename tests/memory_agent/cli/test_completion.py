"""Test command completion in real bash, zsh and fish, and the location of the installed script."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from memory_agent.cli.group import all_commands, cli

PATIENCE_S = 60.0
SHELLS = ("bash", "zsh", "fish")
COMPLETED = {
    "reca": "recall",
    "trajectory beg": "begin",
    "recall --expl": "--explain",
    "recall x --expl": "--explain",
    "recall --kind fi": "finding",
    "recall --user al": "alice",
    "recall --set recall.min_s": "recall.min_score=",
    "connect --dry-run claude": "claude-code",
    "serve --no-suc": None,
    "recall reme": None,
}
"""The words typed after `memory-agent`, and their only completion, or None."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for name in ("alice", "al%3a1", "al$(touch executed)"):  # a user, the user `al:1`, and a folder without a user
        (home / "data" / "users" / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MEMORY_AGENT_DATA_DIR", str(home / "data"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # fish needs the command
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "BASH_COMPLETION_USER_DIR", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home)
    return home


def called(*words: str) -> Result:
    return CliRunner().invoke(cli, ["completion", *words])


def missing(reason: str) -> NoReturn:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def installed(shell: str) -> Path:
    """Install the completion for a shell, which must be installed on this machine, and return the script's path."""
    if shutil.which(shell) is None:
        missing(f"{shell} is not installed")
    result = called("install", shell, "--json")
    assert result.exit_code == 0, result.output
    return Path(json.loads(result.stdout)["path"])


def output(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_bash_completes_commands_options_and_values() -> None:
    path = installed("bash")
    script = f"""source {path}
        for line in {" ".join(f"'memory-agent {line}'" for line in COMPLETED)}; do
            COMP_WORDS=($line) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _memory_agent && true
            echo "${{COMPREPLY[*]}}"
        done"""
    assert output("bash", "--norc", "-c", script).splitlines() == [word or "" for word in COMPLETED.values()]
    assert not Path("executed").exists()


def test_bash_completes_the_value_after_an_equals_sign() -> None:
    path = installed("bash")
    script = f"source {path}; COMP_WORDS=(memory-agent recall --kind = fi) COMP_CWORD=4; _memory_agent; echo $COMPREPLY"
    assert output("bash", "--norc", "-c", script) == "finding\n"


def test_the_package_bash_completion_finds_the_file() -> None:
    package = Path("/usr/share/bash-completion/bash_completion")
    if not package.exists():
        missing("the package bash-completion is not installed")
    installed("bash")
    load = "_comp_load memory-agent 2> /dev/null || __load_completion memory-agent"
    assert output("bash", "--norc", "-c", f"source {package}; {load}; complete -p memory-agent") == (
        "complete -F _memory_agent memory-agent\n"
    )


def test_fish_completes_commands_options_and_values_without_a_new_shell() -> None:
    installed("fish")
    script = "\n".join(
        f"complete -C 'memory-agent {line}' | string replace -r '\\t.*' ''; echo ." for line in COMPLETED
    )
    shown = "".join(f"{word}\n.\n" if word else ".\n" for word in COMPLETED.values())
    assert output("fish", "-c", script) == shown


def test_zsh_completes_commands_options_and_values(home: Path) -> None:
    path = installed("zsh")
    (home / ".zshrc").write_text(
        f"PS1=; fpath=({path.parent} $fpath); autoload -Uz compinit && compinit -u\n"
        'dump() { print -r -- "[[$BUFFER]]" }; zle -N dump; bindkey "^Xd" dump; bindkey "^U" kill-whole-line\n'
        "print READY\n"
    )
    terminal, its = pty.openpty()
    process = subprocess.Popen(
        ["zsh", "-i"], stdin=its, stdout=its, stderr=its, env=os.environ | {"TERM": "dumb"}, start_new_session=True
    )
    os.close(its)
    try:
        until(terminal, b"READY")
        for line, word in COMPLETED.items():
            os.write(terminal, f"memory-agent {line}\t\x18d".encode())
            shown = until(terminal, b"]]").decode()
            typed = re.findall(r"\[\[memory-agent (.*)\]\]", shown)[-1]
            assert typed.rstrip(" =") == (f"{line.rpartition(' ')[0]} {word}".strip().rstrip("=") if word else line)
            os.write(terminal, b"\x15")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def until(terminal: int, mark: bytes) -> bytes:
    """Return what a terminal shows, up to a mark."""
    shown = b""
    while mark not in shown:
        assert select.select([terminal], [], [], PATIENCE_S)[0], shown
        shown += os.read(terminal, 1 << 16)
    return shown


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_option_and_names_its_version(shell: str) -> None:
    script = called("show", shell).stdout
    assert re.search(r"^# Completion of memory-agent \d+\.\S+ for", script, re.MULTILINE)
    for words, command in all_commands():
        assert words[-1] in script
        for name in (name for one in command.params if one.param_type_name == "option" for name in one.opts):
            assert (f"-l {name[2:]} " if shell == "fish" and name.startswith("--") else name) in script, (words, name)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_of_the_environment_is_chosen_and_remove_undoes_install(
    shell: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    before = sorted(home.rglob("*"))
    first, again = called("install"), called("install")
    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    (path,) = (path for path in home.rglob("*memory-agent*") if path.is_file())
    assert first.stdout.startswith(f"installed {path}\n")
    assert again.stdout.startswith(f"already installed: {path}\n")
    assert path.stat().st_mode & 0o777 == 0o644
    assert called("remove").stdout == f"removed {path}\n"
    assert [path for path in sorted(home.rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]
    assert called("remove").stdout == f"not installed: {path}\n"


def test_a_shell_without_completion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = called("install")
    assert result.exit_code == 2
    assert "$SHELL is /bin/tcsh; specify one of: bash, zsh, fish" in result.stderr


@pytest.mark.parametrize("act", ["install", "remove"])
def test_a_file_of_another_program_is_left_alone(act: str, home: Path) -> None:
    path = home / ".config" / "fish" / "completions" / "memory-agent.fish"
    path.parent.mkdir(parents=True)
    path.write_text("# of somebody else\n")
    result = called(act, "fish")
    assert (result.exit_code, path.read_text()) == (1, "# of somebody else\n")
    assert result.stderr == f"error: {path}: was not written by memory-agent; rename or remove it first\n"


def test_a_folder_that_cannot_be_written_is_named(home: Path) -> None:
    (home / ".config").write_text("a file where a folder should be")
    result = called("install", "fish")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {home}/.config/fish/completions")
