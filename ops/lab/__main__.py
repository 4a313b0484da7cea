"""`python -m ops.lab sona`: measures whether, when and by how much learning from run outcomes improves recall."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from memory_agent.__main__ import INTERRUPTED
from memory_agent.cli.command import as_struct
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
    """Run research protocols on the real memory. Nothing here is part of the product.

    \b
    Examples:
      python -m ops.lab sona locomo10.json --runs airline.json
      python -m ops.lab instant locomo10.json
      python -m ops.lab sona --help
    """


class _Options(NamedTuple):
    """The options of `sona`."""

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
        """Return the inputs to measure. Raises `click.UsageError` if no file is given."""
        from ops.lab.protocol import Protocol

        if self.file is None and self.runs_file is None:
            raise click.UsageError("Missing argument 'FILE' (or runs of the airline agent alone: --runs FILE).")
        return Protocol(
            settings=target.settings,
            conversations=None if self.file is None else read_locomo(self.file),
            runs=None if self.runs_file is None else read_airline(self.runs_file),
            seeds=self.seeds or (_QUICK_SEEDS if self.quick else _SEEDS),
            signals=_with_controls(self.signals or SIGNALS),
            shown=self.shown,
            processes=self.processes or os.cpu_count() or 1,
        )


@lab.command(short_help="What is learned from how runs end.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--runs", "runs_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Runs of the airline agent with rewards, as JSON; measured in addition, or alone.")  # fmt: skip
@click.option("--signal", "signals", type=click.Choice(SIGNALS), multiple=True,
              help="Learn from this signal only, with its control. May be repeated. Default: all.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 100), help=f"Number of seeds. Default: {_SEEDS}.")
@click.option("--quick", is_flag=True, help=f"{_QUICK_SEEDS} seed: a check that it runs; its figures prove nothing.")
@click.option("--shown", type=click.IntRange(1, 100), default=10, show_default=True,
              help="Memories per answer while learning.")  # fmt: skip
@click.option("--jobs", "processes", type=click.IntRange(1, 64),
              help="Processes, each with its own model. Default: one per core.")  # fmt: skip
@click.option("--results", type=click.Path(path_type=Path), metavar="OUT",
              help="Write the results of each question to this file, as JSON; ids and figures, no text.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="PNG",
              help="Draw the learning curve to this file (needs `pip install memory-agent[plot]`).")  # fmt: skip
@common_options
@as_struct("options", _Options)
def sona(target: Target, options: _Options) -> None:
    """Teach memories by feedback, ask them again, and compare their gain with controls.

    FILE holds LoCoMo conversations; categories 1 to 4 count. Everything is asked of the real memory, in this process,
    on copies of one store: recall, then feedback, then the next recall. The copies are removed.

    \b
    What runs say they used:
      oracle          all evidence, found or not: an upper bound that no user gives
      cite            the evidence shown, 80 % right; 10 % of the verdicts are wrong. The headline
      list            everything shown, which carries no information
      shuffled …      the controls: as many memories, but not those used

    \b
    What is measured:
      learn and ask   half of the questions teach, half test: at random, where test questions
                      share the evidence of a training question (repeated) or not (new), and
                      disjoint, where none does. Recall at 1, 5, 10 and MRR, less the shipped
                      ranking with learning off; whole conversations are resampled
      two projects    what remains of a gain when another project is taught, and the harm to it
      the gate        in how many streams it opened, where it should and where it should not
      recurring work  in how many users it opened within 20 and 50 runs, and what they then gain
      airline runs    past runs for a new request: of the same task, and successful or not

    Also compared with learning off: vectors alone, parts of the learner alone, and one vector that moves all queries
    (Rocchio). A gain counts as far as it exceeds both learning off and the shuffled control. "cite, gate decides" is
    what a user gets with learning.mode=auto; the others act always. The default takes some 15 minutes on two slow
    cores, --quick a few, with intervals that prove nothing.

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
        raise InvalidInputError(str(options.file), "has no questions with evidence; there is nothing to measure")
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


@lab.command(short_help="What the instant layer of the learner adds.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Number of seeds.")
@click.option("--jobs", "processes", type=click.IntRange(1, 64),
              help="Processes, each with its own model. Default: one per core.")  # fmt: skip
@common_options
def instant(target: Target, file: Path, seeds: int, processes: int | None) -> None:
    """Compare the learner with and without its instant layer, in the two states in which the layer acts.

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
        raise InvalidInputError(str(file), "has no questions with evidence; there is nothing to measure")
    with progress_bars() as progress:
        report = measure_instant_layer(protocol, progress)
    print_document(report) if target.as_json else print_instant(report)


def _with_controls(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """Return the signals with their controls, in canonical order."""
    controls: dict[str, Signal] = {"oracle": "shuffled oracle", "cite": "shuffled cite", "list": "shuffled cite"}
    wanted = {*signals, *(controls[signal] for signal in signals if signal in controls)}
    return tuple(signal for signal in SIGNALS if signal in wanted)


if __name__ == "__main__":
    try:
        lab(prog_name="python -m ops.lab")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
