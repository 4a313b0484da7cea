"""`make release VERSION=0.2.0` prepares a release: sets the version in all files, builds and checks the distributions,
commits and tags.

`pyproject.toml` defines the version, from which the change log, the image tag and the generated files are updated. All
steps run in a clone of the last commit, so a failed step changes nothing. `DRY_RUN=1` shows the result without changing
anything. To publish, the owner first chooses another name, because `memory-agent` on PyPI is a different project, and
then runs `twine upload dist/*`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import click
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
_FOLLOWING = {
    "pyproject.toml": (r'^version = ".*"$', 'version = "{version}"'),
    "ops/kubernetes/kustomization.yaml": (r"newTag: .*$", "newTag: {version}"),
    "ops/CHANGELOG.md": (r"^## Unreleased$", "## Unreleased\n\n## {version} ({date})"),
}
"""What is replaced in each file."""


@click.command()
@click.argument("version")
@click.option("--dry-run", is_flag=True, help="Show what the release would contain, and change nothing.")
def main(version: str, dry_run: bool) -> None:
    """Release VERSION: write it to the files, build and test the distributions, commit, and tag.

    \b
    Examples:
      python -m ops.release 0.2.0 --dry-run
      python -m ops.release 0.2.0
    """
    tag = f"v{version}"
    _require_possible(version, tag)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        _run("git", "clone", "--quiet", "--shared", ROOT, copy)
        for name, (pattern, text) in _FOLLOWING.items():
            _replace(copy / name, pattern, text.format(version=version, date=datetime.now(UTC).date()))
        python = _install(copy, Path(folder) / "env", "--editable", ".", "ruff")
        _run(python, "-m", "ops.documents", cwd=copy)
        _run(python, "-m", "memory_agent", "man", "--out", "man", cwd=copy)
        _build(copy, Path(folder) / "dist")
        distributions = sorted((Path(folder) / "dist").iterdir())
        _run(sys.executable, "-m", "twine", "check", "--strict", *distributions)
        _try_out(
            copy,
            Path(folder) / "tried",
            distributions[-1] if distributions[-1].suffix == ".whl" else distributions[0],
            version,
        )
        click.echo(_run("git", "diff", "--stat", cwd=copy), nl=False)
        for path in distributions:
            click.echo(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        if dry_run:
            click.echo("dry run: nothing was changed")
            return
        _run("git", "commit", "--quiet", "--all", "--message", f"Release {version}", cwd=copy)
        _run("git", "pull", "--quiet", "--ff-only", copy, "HEAD")
        _run("git", "tag", "--annotate", tag, "--message", f"Release {version}")
        shutil.rmtree(ROOT / "dist", ignore_errors=True)  # otherwise, `twine upload dist/*` would publish old files too
        shutil.copytree(Path(folder) / "dist", ROOT / "dist")
    click.echo(
        f"committed and tagged {tag}; the distributions are in dist/. To publish: git push --follow-tags, twine upload"
    )


def _require_possible(version: str, tag: str) -> None:
    """Raise `click.ClickException` if this version cannot be released from this tree."""
    current = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert current is not None
    try:
        if Version(version) <= Version(current[1]):
            raise click.ClickException(f"{version} is not later than {current[1]}")
    except InvalidVersion as error:
        raise click.ClickException(f"{error}; choose one such as 0.2.0") from error
    if _run("git", "status", "--porcelain"):
        raise click.ClickException("there are uncommitted changes; commit them first")
    if _run("git", "tag", "--list", tag):
        raise click.ClickException(f"the tag {tag} exists; choose another version")
    entries = (
        (ROOT / "ops" / "CHANGELOG.md").read_text(encoding="utf-8").partition("## Unreleased")[2].partition("\n## ")[0]
    )
    if not entries.strip():
        raise click.ClickException("ops/CHANGELOG.md has no entry below Unreleased; describe what changed")


def _replace(path: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, text, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if count != 1:
        raise click.ClickException(f"{path.name} contains {count} versions to replace instead of one")
    path.write_text(changed, encoding="utf-8")


def _install(copy: Path, folder: Path, *what: str | Path) -> Path:
    """Install `what` into a new environment; return the path of its Python."""
    _run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    limits = ("--constraint", copy / "ops" / "constraints.txt")
    _run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *limits, *what, cwd=copy)
    return python


def _build(copy: Path, folder: Path) -> None:
    _run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", folder, copy)


def _try_out(copy: Path, folder: Path, wheel: Path, version: str) -> None:
    """Install the wheel alone, print its version, and store and recall a memory."""
    program = _install(copy, folder, wheel).with_name("memory-agent")
    if version not in (printed := _run(program, "--version")):
        raise click.ClickException(f"the wheel prints {printed.strip()} instead of {version}")
    data = ("--data-dir", folder / "data")
    _run(program, "remember", "Staging needs the VPN", *data)
    if "VPN" not in _run(program, "recall", "what does staging need?", *data):
        raise click.ClickException("the installed wheel does not recall the stored memory")


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    """Return the output of a command. If the command fails, raises `click.ClickException` with the command's output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd or ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(map(str, command))}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
