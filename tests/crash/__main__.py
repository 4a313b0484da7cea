"""Runs hundreds of kills and faults, with progress on standard error.

    python -m tests.crash [--seed N] [--only kills,faults,power,damage,daemon,light,full,away,cluster]
                          [--kill relay=250] [--minutes N] [--json FILE] [--table FILE] [--logs FOLDER]

Every second round of kills, faults, power cuts and damage uses encrypted data. Each round derives its seed from the
first seed and its own number, and prints it on failure. A failure does not stop the remaining rounds. Exits with status
1 if any promise (see `history`) was violated.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

from memory_agent.cli.progress import progress_bars

from . import faults
from .absence import relay_away
from .campaign import FAULTS, Tell, draw_kills, fault_round, kill_round
from .cluster_world import ClusterWorld, strike_for
from .daemon_world import VICTIMS, DaemonWorld, daemon_kills, fill_disk_of, strike_all
from .damage import Opening, damages, inspect
from .data_folder import make_data_folder
from .disk import CannotMountError
from .figures import Figures
from .history import check
from .power import power_cut

SEED = 20260216
KILLS = {"relay": 250, "owner": 150, "plain": 30, "spooling": 70}
KILLS_A_ROUND = 23
FAULT_ROUNDS = 4
POWER_CUTS = 10
DAMAGES_A_FILE = 12
DAEMON_ROUNDS = 2  # each round kills every process of a daemon once
AWAY_S = 60.0
LIGHT_KILLS = 12  # kills of a daemon without Ray, which is a single process
CLUSTER_MINUTES = 5.0
PARTS = "kills,faults,power,damage,daemon,light,full,away,cluster"
Round = Callable[[Figures, Tell], None]


def main() -> int:
    """Run the selected parts; return the exit code."""
    options = _parse()
    if reason := faults.missing():
        print(f"the long form needs the shim: {reason}", file=sys.stderr)
        return 1
    figures, failures = Figures(), 0
    with tempfile.TemporaryDirectory(prefix="crash-shim-") as folder, progress_bars() as report:
        shim = faults.build(Path(folder))
        for name, steps, run in _rounds(options, shim):
            done = _Steps(name, steps, report)
            try:
                run(figures, done.one)
            except Exception:
                failures += 1
                traceback.print_exc()
            _write(options, figures, failures)
    print(figures.table())
    print(f"seed {options.seed}; rounds that failed: {failures}")
    return 1 if failures or sum(figures.broken.values()) else 0


class _Steps:
    """One progress bar for all rounds of the same name."""

    _done: ClassVar[dict[str, int]] = {}

    def __init__(self, name: str, total: int, report: Callable[[str, int, int], None]) -> None:
        self._name, self._total, self._report = name, total, report

    def one(self) -> None:
        self._done[self._name] = self._done.get(self._name, 0) + 1
        self._report(self._name, self._done[self._name], self._total)


def _rounds(options: argparse.Namespace, shim: Path) -> list[tuple[str, int, Round]]:
    wanted = options.only.split(",")
    rounds: list[tuple[str, int, Round]] = []
    if "kills" in wanted:
        counts = KILLS | dict(_pair(text) for text in options.kill)
        todo = draw_kills(random.Random(options.seed), counts, has_shim=True)
        for number, start in enumerate(range(0, len(todo), KILLS_A_ROUND)):
            asked = options.seed + number, todo[start : start + KILLS_A_ROUND], shim
            round_ = partial(kill_round, *asked, is_encrypted=bool(number % 2))
            rounds.append(("kills", len(todo), round_))
    if "faults" in wanted:
        for number in range(FAULT_ROUNDS):
            seed, faults_ = options.seed + 1_000 + number, list(FAULTS)
            random.Random(seed).shuffle(faults_)
            total = FAULT_ROUNDS * len(FAULTS)
            rounds.append(("faults", total, partial(fault_round, seed, faults_, shim, is_encrypted=bool(number % 2))))
    if "power" in wanted:
        rounds += [
            ("power cuts", POWER_CUTS, partial(_power_cut, shim, is_encrypted=bool(number % 2)))
            for number in range(POWER_CUTS)
        ]
    if "damage" in wanted:
        rounds += [
            ("damages", 0, partial(_damage, options.seed, is_encrypted=is_encrypted)) for is_encrypted in (False, True)
        ]
    if "daemon" in wanted:
        total = DAEMON_ROUNDS * len(VICTIMS)
        todo = daemon_kills(random.Random(options.seed), DAEMON_ROUNDS)
        rounds.append(("kills of a daemon's processes", total, lambda f, t: _daemon(options.seed, todo, f, t)))
    if "light" in wanted:
        kills = ["daemon"] * LIGHT_KILLS
        run = partial(_daemon, options.seed, kills, light=True)
        rounds.append(("kills of a daemon without Ray", LIGHT_KILLS, run))
    if "full" in wanted:
        rounds.append(("full disks of a daemon", 1, _full))
    if "away" in wanted:
        rounds.append(("absences", 1, _away))
    if "cluster" in wanted:
        rounds.append(("faults in a cluster", 0, partial(_cluster, options)))
    return rounds


def _power_cut(shim: Path, figures: Figures, tell: Tell, *, is_encrypted: bool) -> None:
    try:
        cut = power_cut(shim, 100, figures, is_encrypted=is_encrypted)
    except CannotMountError as error:
        print(f"no power cut: {error}", file=sys.stderr)
        return
    assert cut.findings == [], cut.findings[:10]
    assert cut.found >= cut.acked
    tell()


def _damage(seed: int, figures: Figures, tell: Tell, *, is_encrypted: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="crash-") as name, closing(Opening()) as opening:
        base = Path(name) / "base"
        make_data_folder(base, is_encrypted=is_encrypted)
        todo = damages(base, random.Random(seed), DAMAGES_A_FILE)
        wrong = list(inspect(opening, base, Path(name) / "work", todo, figures, tell))
    assert wrong == [], f"seed {seed}: {wrong[:10]}"


def _daemon(seed: int, todo: list[str], figures: Figures, tell: Tell, *, light: bool = False) -> None:
    def struck(victim: str) -> None:
        figures.kills["daemon without Ray" if light else f"{victim}, in a whole daemon"] += 1
        tell()

    with tempfile.TemporaryDirectory(prefix="crash-") as name, DaemonWorld(Path(name), light=light) as world:
        history = strike_all(world, todo, random.Random(seed), struck)
    findings = check(history)
    figures.add(history, findings)
    assert findings == [], f"seed {seed}: {findings[:10]}"


def _full(figures: Figures, tell: Tell) -> None:
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        try:
            history = fill_disk_of(Path(name) / "world")
        except CannotMountError as error:
            print(f"no full disk: {error}", file=sys.stderr)
            return
    findings = check(history)
    figures.add(history, findings)
    figures.faults["the whole disk, full under a whole daemon"] += 1
    assert findings == [], findings[:10]
    tell()


def _away(figures: Figures, tell: Tell) -> None:
    with tempfile.TemporaryDirectory(prefix="crash-") as name:
        findings = relay_away(Path(name), AWAY_S, figures)
    assert findings == [], findings[:10]
    tell()


def _cluster(options: argparse.Namespace, figures: Figures, tell: Tell) -> None:
    with tempfile.TemporaryDirectory(prefix="crash-") as name, ClusterWorld(Path(name)) as world:
        try:
            strike_for(world, options.minutes * 60, random.Random(options.seed), figures, tell)
        except AssertionError as error:
            error.add_note(f"seed {options.seed}")
            raise
        finally:
            if options.logs:
                world.keep_logs(options.logs)


def _write(options: argparse.Namespace, figures: Figures, failures: int) -> None:
    """Write the results; called after each round, so that an interrupted run loses nothing."""
    figures.totals["rounds that failed"] = failures
    if options.json:
        figures.write(options.json)
    if options.table:
        options.table.write_text(figures.table(), encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="The crash laboratory in its long form.")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of all faults")
    parser.add_argument("--only", default=PARTS, help="parts to run, comma-separated")
    parser.add_argument("--kill", action="append", default=[], help="VICTIM=COUNT: instead of the default number")
    parser.add_argument("--minutes", type=float, default=CLUSTER_MINUTES, help="how long the cluster has faults")
    parser.add_argument("--logs", type=Path, help="folder for what the cluster's processes and clients wrote")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--table", type=Path, help="file for the figures as Markdown")
    return parser.parse_args()


def _pair(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    return name, int(count)


if __name__ == "__main__":
    sys.exit(main())
