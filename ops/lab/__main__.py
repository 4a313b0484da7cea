"""`python -m ops.lab sona`: measures whether, when and by how much learning from run outcomes improves recall."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from memory_agent.cli.command import as_struct
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.group import FailureGroup
from memory_agent.cli.options import Target, common_options
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.render import print_document
from memory_agent.errors import InvalidInputError
from memory_agent.evaluation import read_locomo, results_file
from ops.lab.airline import read_airline
from ops.lab.arms import SIGNALS, Signal

if TYPE_CHECKING:
    from ops.lab.protocol import Protocol

_SEEDS, _QUICK_SEEDS = 5, 1


@click.group(cls=FailureGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def lab() -> None:
    """Run research protocols on the real memory. They are not part of the product.

    \b
    Examples:
      python -m ops.lab sona locomo10.json --runs airline.json
      python -m ops.lab instant locomo10.json
      python -m ops.lab gate --airline airline.json --lives lives.jsonl
      python -m ops.lab sona --help
    """


class _Options(NamedTuple):
    """The parsed options of `sona`."""

    file: Path | None
    runs_file: Path | None
    signals: tuple[Signal, ...]
    seeds: int | None
    quick: bool
    shown: int
    processes: int | None
    results: Path | None
    plot: Path | None

    def protocol(self, target: Target) -> Protocol:
        """Read the input files and return the protocol. Raises `click.UsageError` if no file is given."""
        from ops.lab.protocol import Protocol

        if self.file is None and self.runs_file is None:
            raise click.UsageError("Missing argument 'FILE' (to measure only airline runs, use --runs FILE).")
        return Protocol(
            settings=target.settings,
            conversations=None if self.file is None else read_locomo(self.file),
            runs=None if self.runs_file is None else read_airline(self.runs_file),
            seeds=self.seeds or (_QUICK_SEEDS if self.quick else _SEEDS),
            signals=_with_controls(self.signals or SIGNALS),
            shown=self.shown,
            processes=self.processes or os.cpu_count() or 1,
        )


@lab.command(short_help="Measure learning from run outcomes.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--runs", "runs_file", type=click.Path(path_type=Path), metavar="FILE",
              help="JSON file of airline agent runs with rewards; may be used with or without FILE.")  # fmt: skip
@click.option("--signal", "signals", type=click.Choice(SIGNALS), multiple=True,
              help="Learn only from this signal and its control. May be repeated. Default: all.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 100), help=f"Number of seeds. Default: {_SEEDS}.")
@click.option("--quick", is_flag=True, help=f"Use {_QUICK_SEEDS} seed, as a smoke test; the results prove nothing.")
@click.option("--shown", type=click.IntRange(1, 100), default=10, show_default=True,
              help="Memories per answer while learning.")  # fmt: skip
@click.option("--jobs", "processes", type=click.IntRange(1, 64),
              help="Number of processes, each with its own model. Default: one per core.")  # fmt: skip
@click.option("--results", type=click.Path(path_type=Path), metavar="OUT",
              help="Write each question's results to this JSON file: ids and numbers, but no text.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="PNG",
              help="Plot the learning curve to this file (requires `pip install matplotlib`).")  # fmt: skip
@common_options
@as_struct("options", _Options)
def sona(target: Target, options: _Options) -> None:
    """Train memory stores with feedback, test them, and compare their gains with those of controls.

    FILE contains LoCoMo conversations; categories 1 to 4 are used. Every query uses the real, embedded memory, on
    temporary copies of one store. Each recall is followed by feedback, and then by the next recall.

    \b
    Signals (what runs report as used):
      oracle          all evidence, found or not: an upper bound
      cite            the evidence shown, 80 % right; 10 % of verdicts wrong (the main result)
      list            everything shown, which is uninformative
      shuffled …      the controls: an equal number of other memories

    \b
    Experiments:
      learn and ask   half of the questions teach, half test. Random split: test questions
                      share evidence with a training question (repeated) or not (new).
                      Disjoint split: they share none. Recall at 1, 5, 10 and MRR, minus the shipped
                      ranking with learning off; whole conversations are resampled
      two projects    how much gain remains after a second project, and the harm to the second
      the gate        in how many streams it opened, rightly and wrongly
      recurring work  for how many users the gate opened within 20 and 50 runs, and their gain
      airline runs    past runs recalled for a new request: same task or not, successful or not

    Three other kinds of arms are also compared with the shipped ranking with learning off: only vectors, individual
    parts of the learner, and one vector that shifts all queries (Rocchio). Only a gain over both that ranking and
    the shuffled control counts. "cite, gate decides" is what a user gets with learning.mode=auto; in the other arms,
    learning is always active. The default takes about 15 minutes on two slow cores, and --quick takes a few minutes.

    \b
    Examples:
      python -m ops.lab sona locomo10.json --runs airline.json --plot curve.png
      python -m ops.lab sona locomo10.json --signal cite --seeds 10 --json > report.json
      python -m ops.lab sona --runs airline.json
    """
    from ops.lab.plot import check_plot, draw_curve
    from ops.lab.protocol import run_protocol
    from ops.lab.report import summarise
    from ops.lab.tables import print_learning

    if options.plot is not None:
        check_plot(options.plot)
    protocol = options.protocol(target)
    if not protocol.histories and protocol.runs is None:
        raise InvalidInputError(str(options.file), "contains no questions with evidence")
    with ExitStack() as stack:
        place = stack.enter_context(results_file(options.results)) if options.results else None
        with progress_bars() as progress:
            evidence = run_protocol(protocol, progress)
        if place is not None:
            place.write_bytes(msgspec.json.encode(evidence))
    report = summarise(protocol, evidence)
    if options.plot is not None and report.curve:
        draw_curve(report.curve, f"{report.users} conversations, {report.seeds} seeds", options.plot)
    print_document(report) if target.as_json else print_learning(report)


@lab.command(short_help="Measure the learner's instant layer.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Number of seeds.")
@click.option("--jobs", "processes", type=click.IntRange(1, 64),
              help="Number of processes, each with its own model. Default: one per core.")  # fmt: skip
@common_options
def instant(target: Target, file: Path, seeds: int, processes: int | None) -> None:
    """Compare the learner with and without its instant layer, in the two states in which the layer is active.

    \b
    Examples:
      python -m ops.lab instant locomo10.json
      python -m ops.lab instant locomo10.json --seeds 5 --json > instant.json
    """
    from ops.lab.protocol import Protocol, measure_instant_layer
    from ops.lab.tables import print_instant

    protocol = Protocol(
        settings=target.settings,
        conversations=read_locomo(file),
        runs=None,
        seeds=seeds,
        signals=(),
        shown=10,
        processes=processes or os.cpu_count() or 1,
    )
    if not protocol.histories:
        raise InvalidInputError(str(file), "contains no questions with evidence")
    with progress_bars() as progress:
        report = measure_instant_layer(protocol, progress)
    print_document(report) if target.as_json else print_instant(report)


class _Users(NamedTuple):
    """The parsed options of `gate`."""

    airline: Path | None
    swe: Path | None
    worlds: int
    users: int
    runs: int
    lives: Path


@lab.command(short_help="Measure how soon the gate opens.")
@click.option("--airline", type=click.Path(path_type=Path), metavar="FILE", help="JSON file of airline agent runs.")
@click.option("--swe", type=click.Path(path_type=Path), metavar="FILE", help="JSON file of runs on GitHub issues.")
@click.option("--worlds", type=click.IntRange(1, 100), default=5, show_default=True, help="Memories of each file.")
@click.option("--users", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Users of each memory.")
@click.option("--runs", type=click.IntRange(1, 1_000), default=60, show_default=True, help="Runs of each user.")
@click.option("--lives", type=click.Path(path_type=Path), required=True, metavar="FILE",
              help="File of the simulated users; if it exists, new users are appended.")  # fmt: skip
@common_options
@as_struct("options", _Users)
def gate(target: Target, options: _Users) -> None:
    """Measure how many runs it takes for a new user's gate to open, and how often it opens for users who gain nothing.

    Without --airline and --swe, the command only summarises the users in the file. The default takes about 20 minutes
    on one slow core.

    \b
    Examples:
      python -m ops.lab gate --airline airline.json --swe swe.json --lives lives.jsonl
      python -m ops.lab gate --lives lives.jsonl
    """
    from ops.lab.first_week import read_lives, simulate, summarise, worlds_of
    from ops.lab.swe_runs import read_swe_runs
    from ops.lab.tables import print_first_week

    files = {} if options.airline is None else {"airline": read_airline(options.airline).runs}
    files |= {} if options.swe is None else {"swe": read_swe_runs(options.swe)}
    with progress_bars() as progress:
        for world in worlds_of(files, options.worlds, target.settings):
            simulate(world, options.users, options.runs, options.lives, progress)
    report = summarise(read_lives(options.lives))
    print_document(report) if target.as_json else print_first_week(report)


def _with_controls(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """Return the signals and their controls, in the order of `SIGNALS`."""
    controls: dict[str, Signal] = {"oracle": "shuffled oracle", "cite": "shuffled cite", "list": "shuffled cite"}
    wanted = {*signals, *(controls[signal] for signal in signals if signal in controls)}
    return tuple(signal for signal in SIGNALS if signal in wanted)


if __name__ == "__main__":
    try:
        lab(prog_name="python -m ops.lab")
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
