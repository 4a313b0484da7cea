"""Searches for an input on which one target fails, by mutation or, if atheris is installed, guided by coverage.

The search runs in a child process, so a crash or hang ends only the search of that target. The finding is then the
input that caused the crash or hang. Findings are minimised, and one of each kind is stored.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import NamedTuple

from limits import within_limits
from mutations import mutate
from target import CORPUS, Target

HANG_S = 60.0
_SMALLEST_BYTES, _SHRINKING_TRIES = 8, 400
_EXECUTED = re.compile(r"number_of_executed_units:\s*(\d+)")
_FOLDER = Path(__file__).parent

Findings = dict[str, tuple[str, bytes]]
"""The message and the smallest input, by the exception's type and origin."""


class Hunt(NamedTuple):
    """The outcome of a search."""

    inputs: int
    findings: list[tuple[str, bytes]]


def has_atheris() -> bool:
    """Return whether coverage guidance is available."""
    return find_spec("atheris") is not None


def hunt(name: str, seconds: float, seed: int, guided: bool) -> Hunt:
    """Run the search in a child process, for the given number of seconds."""
    with tempfile.TemporaryDirectory(prefix="hunt-") as folder:
        work = Path(folder)
        command = [sys.executable, str(_FOLDER), "--child", str(work), "--target", name, "--seconds", str(seconds)]
        command += ["--seed", str(seed), "--engine", "atheris" if guided else "mutation"]
        environment = {**os.environ, "PYTHONPATH": str(_FOLDER.parents[1])}
        try:
            ended = subprocess.run(command, timeout=seconds + HANG_S, capture_output=True, env=environment)
            code, output = (
                ended.returncode,
                ended.stdout.decode(errors="replace") + ended.stderr.decode(errors="replace"),
            )
        except subprocess.TimeoutExpired:
            code, output = -1, f"did not end within {HANG_S:g} s after its time limit"
        report = work / "report.json"
        if report.exists():
            told = json.loads(report.read_text())
            return Hunt(told["inputs"], [(why, bytes.fromhex(data)) for why, data in told["findings"]])
        if code and not _left(work):
            raise RuntimeError(f"{name} did not reach an input: {output[-600:]}")
        executed = _EXECUTED.search(output)
        found = [(f"ended with {code}: {output[-600:]}", path.read_bytes()) for path in _left(work)] if code else []
        return Hunt(int(executed[1]) if executed else 0, found)


def _left(work: Path) -> list[Path]:
    """Return the input that terminated a child process: libFuzzer's artifact or, without one, the current input."""
    return sorted(work.glob("artifact-*")) or sorted(work.glob("under-way"))


def save(name: str, data: bytes) -> Path:
    """Add an input to the corpus."""
    path = CORPUS / name / sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def mutation_child(target: Target, seconds: float, seed: int, work: Path) -> None:
    """Try mutated samples until the time is up, and write a report."""
    random, findings, inputs = Random(seed), Findings(), 0
    samples = (*target.samples, *(path.read_bytes() for path in target.corpus))
    under_way = work / "under-way"
    for sample in samples:
        target.run(sample)  # initialisation at first use is not counted
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        inputs += 1
        data = (
            random.randbytes(random.randrange(200))
            if inputs % 20 == 0
            else mutate(samples, target.form, random.getrandbits(48))
        )
        under_way.write_bytes(data)
        if found := failure(target, data):
            kind, message = found
            if kind not in findings:
                findings[kind] = message, smaller(target, data, kind)
    report = {"inputs": inputs, "findings": [(f"{kind}: {why}", data.hex()) for kind, (why, data) in findings.items()]}
    (work / "report.json").write_text(json.dumps(report))


def guided_child(target: Target, seconds: float, seed: int, work: Path) -> None:
    """Run libFuzzer on the target; it ends the process."""
    import atheris

    samples = (*target.samples, *(path.read_bytes() for path in target.corpus))
    seeds = work / "seeds"
    seeds.mkdir()
    for place, sample in enumerate(samples):
        (seeds / f"{place:04d}").write_bytes(sample)

    def changed(data: bytes, max_size: int, seed: int) -> bytes:
        made = mutate((bytes(data), *samples), target.form, seed) if seed % 2 else atheris.Mutate(data, max_size)
        return bytes(made[:max_size])

    options = [f"-max_total_time={max(1, int(seconds))}", f"-artifact_prefix={work}/artifact-", "-print_final_stats=1"]
    options += [f"-seed={seed % 2**31 or 1}", "-timeout=30", "-rss_limit_mb=3000", "-max_len=65536", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(seeds)], target.run, custom_mutator=changed)
    atheris.Fuzz()


def failure(target: Target, data: bytes) -> tuple[str, str] | None:
    """Return the type and message of an unexpected error that an input causes."""
    try:
        within_limits(target.run, data)
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" not in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "target"
        return f"{type(error).__name__} at {place}", str(error)[:300]
    return None


def smaller(target: Target, data: bytes, kind: str) -> bytes:
    """Minimise the failing input."""

    def fails(candidate: bytes) -> bool:
        found = failure(target, candidate)
        return found is not None and found[0] == kind

    tries, size = 0, max(1, len(data) // 2)
    while size and tries < _SHRINKING_TRIES and len(data) > _SMALLEST_BYTES:
        place = 0
        while place < len(data) and tries < _SHRINKING_TRIES:
            tries += 1
            candidate = data[:place] + data[place + size :]
            if fails(candidate):
                data = candidate
            else:
                place += size
        size //= 2
    return data
