"""Test that `make release` refuses an invalid release, and that its dry run tries every step but changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ops import release
from ops.release import ROOT, main


def git(folder: Path, *arguments: str) -> str:
    command = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of this repository with one entry under Unreleased."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    folder = tmp_path / "clone"
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(folder))
    page = folder / "ops" / "CHANGELOG.md"
    page.write_text(page.read_text(encoding="utf-8").replace("## Unreleased\n", "## Unreleased\n\n- A change.\n", 1))
    git(folder, "commit", "--quiet", "--all", "--message", "Describe a change")
    monkeypatch.setattr(release, "ROOT", folder)
    return folder


def released(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("version", "reason"),
    [("0.0.9", "not later than 0.1.0"), ("0.1.0", "not later than 0.1.0"), ("next", "choose one such as 0.2.0")],
)
def test_a_version_that_is_not_later_is_refused(clone: Path, version: str, reason: str) -> None:
    result = released(version)
    assert (result.exit_code, reason in result.output) == (1, True), result.output


def test_a_changed_tree_a_taken_tag_and_an_empty_change_log_are_refused(clone: Path) -> None:
    git(clone, "tag", "v0.2.0")
    assert "the tag v0.2.0 exists" in released("0.2.0").output
    page = clone / "ops" / "CHANGELOG.md"
    page.write_text("# Changes\n\n## Unreleased\n\n## 0.1.0\n\n- All.\n", encoding="utf-8")
    assert "uncommitted changes" in released("0.3.0").output
    git(clone, "commit", "--quiet", "--all", "--message", "Empty it")
    assert "no entry below Unreleased" in released("0.3.0").output


@pytest.mark.slow
def test_a_dry_run_builds_and_tries_the_release_and_changes_nothing(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    result = released("9.0.0", "--dry-run")
    if "Failed to fetch" in result.output:
        pytest.skip("the dependencies cannot be downloaded")
    assert result.exit_code == 0, result.output
    for name in ("pyproject.toml", "kustomization.yaml", "CHANGELOG.md", "catalogue.json", "plugin.json"):
        assert name in result.output
    assert "memory_agent-9.0.0-py3-none-any.whl" in result.output
    assert git(clone, "status", "--porcelain") == git(clone, "tag") == ""
    assert git(clone, "rev-parse", "HEAD") == before


@pytest.mark.slow
def test_a_release_is_a_commit_a_tag_and_its_distributions_alone(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses this environment instead of a new one, and does not try out the wheel; the dry run above tests both."""
    monkeypatch.setattr(release, "_install", lambda *_: Path(sys.executable))
    monkeypatch.setattr(release, "_try_out", lambda *_: None)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "a@example.org")
    (clone / "dist").mkdir()
    (clone / "dist" / "memory_agent-0.1.0.tar.gz").touch()
    result = released("9.0.0")
    if "Failed to fetch" in result.output:
        pytest.skip("the dependencies cannot be downloaded")
    assert result.exit_code == 0, result.output
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "show", "v9.0.0^{commit}:pyproject.toml").count('version = "9.0.0"') == 1
    assert git(clone, "rev-parse", "v9.0.0^{commit}") == git(clone, "rev-parse", "HEAD")
    assert sorted(path.name for path in (clone / "dist").iterdir()) == [
        "memory_agent-9.0.0-py3-none-any.whl",
        "memory_agent-9.0.0.tar.gz",
    ]
