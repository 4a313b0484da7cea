"""`sona status|reset|export|import`: learning from run outcomes, and the evidence for using it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from memory_agent.cli.access import note_unknown_user, open_memory
from memory_agent.cli.command import Group
from memory_agent.cli.failure import confirm
from memory_agent.cli.options import STANDARD_STREAM, Target, check_output, daemon_options
from memory_agent.cli.render import print_done, print_figures, printed_json, size
from memory_agent.records.trajectories import GateEvidence, SonaStatus
from sona import HARM_THRESHOLD, SHADOW_LESSONS

_MODES = {
    "auto": "auto: the gate decides",
    "on": "on: in effect regardless of the gate (setting learning.mode)",
    "off": "off: not in effect, regardless of the gate (setting learning.mode)",
}
_file = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Group)
def sona() -> None:
    """Learning from run outcomes: show, export, import or reset it.

    \b
    Examples:
      memory-agent sona status
      memory-agent sona export learned.sona
      memory-agent sona reset
    """


@sona.command(short_help="Show whether learning changes rankings, and why.")
@daemon_options
def status(target: Target) -> None:
    """Show whether learning changes rankings, the evidence for its use, and the runs from which it learned.

    A lesson is a recall whose run has ended. It has credit if the memories that the run used are known. The gate starts
    in `shadow`, where learning has no effect. In `trial`, the learned ranking is compared with the usual ranking, which
    still determines the results. The ranking that better predicts the used memories wins the recall. The gate turns
    `on` when the wealth of a bet on past use reaches the threshold; by chance, this happens with a probability of at
    most 1 / threshold. It turns `off` when the wealth of the opposite bet reaches 20. While it is on, a tenth of the
    recalls are interleaved from both rankings.

    \b
    Examples:
      memory-agent sona status
    """
    with open_memory(target, "sona_status") as memory:
        found = memory.sona.status()
    if not printed_json(target.as_json, found):
        print_status(found)


@sona.command(short_help="Forget what was learned, but keep runs and memories.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@daemon_options
def reset(target: Target, yes: bool) -> None:
    """Forget what was learned, and exclude all existing runs from learning. Runs and memories are kept.

    This cannot be undone: importing an earlier export has no effect, because its runs are already known.

    \b
    Examples:
      memory-agent sona reset
    """
    if not yes:
        confirm("permanently forget what was learned from all existing runs?")
    with open_memory(target, "sona_reset") as memory:
        left_out = memory.sona.reset()
    sentence = f"forgot what was learned; runs excluded from now on: {left_out}"
    print_done(target.as_json, {"left_out": left_out}, sentence)


@sona.command(short_help="Export the runs used for learning.")
@click.argument("file", type=_file)
@daemon_options
def export(target: Target, file: Path) -> None:
    """Write all finished runs with their recalls to FILE, or to standard output with -.

    The learner's state is derived only from these runs. Memories are identified by id, but queries can be guessed from
    their vectors, so keep the file as private as the memory itself. An existing file is overwritten.

    \b
    Examples:
      memory-agent sona export learned.sona
      memory-agent sona export - --user alice > alice.sona
    """
    check_output(target, file)
    with open_memory(target, "sona_export") as memory:
        data = memory.sona.export()
        note_unknown_user(target)
    if file == STANDARD_STREAM:
        sys.stdout.buffer.write(data)
    else:
        from memory_agent.care import write_file  # imports the engines

        write_file(file, [data])
        print_done(target.as_json, {"file": str(file), "bytes": len(data)}, f"wrote {size(len(data))} to {file}")


@sona.command("import", short_help="Also learn from a file written by `sona export`.")
@click.argument("data", metavar="FILE", type=_file)
@daemon_options
def import_file(target: Target, data: Path) -> None:
    """Also learn from the runs in FILE, written by `sona export`. FILE may be - for standard input.

    Runs that are already known stay unchanged, and memories that are not stored here are skipped. A damaged file is
    rejected and changes nothing.

    \b
    Examples:
      memory-agent sona import learned.sona
      memory-agent sona import - --user alice < alice.sona
    """
    learned = sys.stdin.buffer.read() if data == STANDARD_STREAM else data.read_bytes()
    with open_memory(target, "sona_import") as memory:
        added = memory.sona.load(learned)
    print_done(target.as_json, {"added": added}, f"new runs: {added}")


def print_status(found: SonaStatus) -> None:
    figures = {
        "mode": _MODES[found.mode],
        "engine": found.engine or "sona",
        "gate": gate_sentence(found.gate, found.credited) if found.mode == "auto" else "not asked",
        "trajectories": f"{found.trajectories}; lessons with credit: {found.credited}",
        "recalls served": found.served,
        "measured gain": gain_sentence(found),
        "learned from": f"exemplars: {found.exemplars}; memories with credit: {found.memories_with_credit}",
        "last consolidation": found.consolidated_at or "not yet",
        "size": size(found.state_bytes),
    }
    print_figures(f"learning of {found.user_id}", figures)


def gate_sentence(gate: GateEvidence, credited: int) -> str:
    if gate.state == "shadow":
        needed = f"a trial requires {SHADOW_LESSONS} lessons with credit ({credited} so far)"
        return f"shadow: learning, but not changing answers yet; {needed}"
    contests = f"the learned ranking won {gate.won} of {gate.won + gate.lost} decided recalls"
    against = f"wealth of the opposite bet {gate.harm:.3g} of {HARM_THRESHOLD:g}"
    if gate.state == "trial":
        return f"trial: {contests}; wealth {gate.evidence:.3g} of {gate.threshold:g} needed; {against}"
    if gate.state == "on":
        return f"on: {contests} since then; {against}"
    return f"off: {contests}; {against}; it will get another trial later"


def gain_sentence(found: SonaStatus) -> str:
    if found.gain is None:
        return "unknown: no interleaved recall has been decided yet"
    low, high = found.gain_low, found.gain_high
    interval = "" if low is None or high is None else f" (95 %: {low:+.3f} to {high:+.3f})"
    return f"{found.gain:+.3f}{interval} relative to one half, the share of decided interleaved recalls won by chance"
