"""Measures an installation of the wheel: seconds from `pip install` to a first answer, and the size of each package.

Each run downloads all packages and the model, without pip's cache. The size is that of the installed files, including
the bytecode that pip compiles, and excluding pip itself. Missing Python versions are skipped.

To run it: `python -m ops.bench.install [PYTHON ...]`, which writes the first part of `ops/bench/install.md`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ops.bench.machine import describe_machine, load_per_core
from ops.bench.spread import spread

PAGE = Path(__file__).with_name("install.md")
TARGET_MB = 350
TARGET_S = 60.0
_ROOT = Path(__file__).parents[2]
_TURNS = 3
_PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
_LARGE_MB = 5.0
_FORMS = {"one process": "", "with Ray": "[cluster]"}
_SIZES = """
import importlib.metadata, json
sizes = {}
for distribution in importlib.metadata.distributions():
    files = (distribution.locate_file(file) for file in distribution.files or ())
    sizes[distribution.name] = sum(file.stat().st_size for file in files if file.is_file())
print(json.dumps(sizes))
"""
_BY_PIP = ("pip", "setuptools")


def measure(pythons: list[str]) -> dict[str, Any]:
    """Return the figures for each form with each installed version of Python."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "build", "--outdir", folder, _ROOT], check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        return {
            f"{Path(python).name}, {form}": _installation(python, f"{wheel}{extra}")
            for python in pythons
            for form, extra in _FORMS.items()
            if shutil.which(python)
        }


def _installation(python: str, what: str) -> dict[str, Any]:
    installs, answers = [], []
    for _ in range(_TURNS):
        with tempfile.TemporaryDirectory() as folder:
            install_s, answer_s, figures = _once(python, what, Path(folder))
            installs.append(install_s)
            answers.append(answer_s)
    total = [install + answer for install, answer in zip(installs, answers, strict=True)]
    return {"install_s": spread(installs), "answer_s": spread(answers), "total_s": spread(total), **figures}


def _once(python: str, what: str, folder: Path) -> tuple[float, float, dict[str, Any]]:
    home = folder / "home"
    home.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XDG", "MEMORY"))
    }
    environment |= {"HOME": str(home), "XDG_CONFIG_HOME": str(Path("~/.config").expanduser())}  # pip's configuration

    def run(program: str, *arguments: str) -> str:
        command = [folder / "env" / "bin" / program, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=folder)
        return done.stdout

    subprocess.run([python, "-m", "venv", folder / "env"], check=True)
    started_s = time.perf_counter()
    run("pip", "install", "--no-cache-dir", what)
    installed_s = time.perf_counter()
    run("memory-agent", "remember", "The deploy hangs while the VPN is off")
    assert "VPN" in run("memory-agent", "recall", "why does the deploy hang?")
    answered_s = time.perf_counter()
    sizes = {name: size / 1e6 for name, size in json.loads(run("python", "-c", _SIZES)).items() if name not in _BY_PIP}
    model = sum(file.stat().st_size for file in (home / ".cache" / "memory-agent").rglob("*") if file.is_file()) / 1e6
    figures = {"packages_mb": sum(sizes.values()), "model_mb": model, "sizes_mb": sizes}
    return installed_s - started_s, answered_s - installed_s, figures


def page(figures: dict[str, Any]) -> str:
    """Return the first part of `install.md`."""
    machine, load = describe_machine(), load_per_core()
    lines = [
        "# Installation",
        "",
        f"Measured on {time.strftime('%Y-%m-%d')} by `python -m ops.bench.install` ({machine['processor']}, "
        f"{machine['cores']} cores; load per core {load:.1f}):",
        f"medians of {_TURNS} installations without a cache, with the smallest and largest value. The time to the",
        "first answer includes downloading the model and storing a first memory.",
        f"Targets for one process: {TARGET_MB} MB and {TARGET_S:.0f} s.",
        "",
        "| Python, form | install s | first answer s | total s | packages MB | model MB | total MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in figures.items():
        times = " | ".join(_cell(found[key]) for key in ("install_s", "answer_s", "total_s"))
        packages, model = found["packages_mb"], found["model_mb"]
        lines.append(f"| {name} | {times} | {packages:.0f} | {model:.0f} | {packages + model:.0f} |")
    name, found = next(iter(figures.items()))
    large = sorted(((size, part) for part, size in found["sizes_mb"].items() if size >= _LARGE_MB), reverse=True)
    rest = found["packages_mb"] - sum(size for size, _ in large)
    lines += [
        "",
        f"Packages of {_LARGE_MB:.0f} MB or more for {name}: "
        + ", ".join(f"{part} {size:.0f}" for size, part in large),
    ]
    lines[-1] += f"; {len(found['sizes_mb']) - len(large)} others together {rest:.0f}."
    return "\n".join(lines) + "\n"


def _cell(found: Any) -> str:
    return f"{found['median']:.1f} ({found['least']:.1f} to {found['most']:.1f})"


def main() -> int:
    """Measure, and replace the first part of the page; the text below it is kept."""
    figures = measure(sys.argv[1:] or list(_PYTHONS))
    former = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    rest = former[former.find("\n## ") :] if "\n## " in former else ""
    PAGE.write_text(page(figures) + rest, encoding="utf-8")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
