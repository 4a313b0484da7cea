"""`sona status|reset|export|import`: what was learned from how runs ended, whether it acts, and on what evidence."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from memory_agent.cli.access import note_unknown, open_for_reading, open_memory
from memory_agent.cli.confirming import confirm
from memory_agent.cli.options import Target, daemon_options
from memory_agent.cli.render import print_document, print_figures, size
from memory_agent.trajectory import GateEvidence, SonaStatus
from sona.gate import SHADOW_LESSONS, THRESHOLD

_MODES = {
    "auto": "auto: the gate decides",
    "on": "on: it acts whatever the gate says (setting learning.mode)",
    "off": "off: it does not act, whatever the gate says (setting learning.mode)",
}
_STANDARD_STREAM = Path("-")
_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group(short_help="What was learned: status, reset, export, import.")
def sona() -> None:
    """What was learned from how runs ended: whether it changes answers, on what evidence, and taking it away again.

    \b
    Examples:
      memory-agent sona status
      memory-agent sona export learned.sona
      memory-agent sona reset
    """


@sona.command(short_help="Whether it changes answers, and on what evidence.")
@daemon_options
def status(target: Target) -> None:
    """Whether what was learned changes answers, and on what evidence; what it was learned from.

    A lesson is a recall whose run has ended; it has credit when it is known which of its memories the run used. The
    gate begins in `shadow`: learning, changing nothing. In `trial`, answers are mixed of both rankings, and the one
    whose memories get used wins the recall. It goes `on` when the wealth of a bet on it reaches what is needed, which
    chance alone brings about at most once in as many trials as it says, and `off` when the bet against it does.

    \b
    Examples:
      memory-agent sona status
      memory-agent sona status --user alice --json
    """
    with open_for_reading(target, "sona_status") as memory:
        found = memory.sona.status()
    if target.as_json:
        print_document(found)
    else:
        print_status(found)


@sona.command(short_help="Forget what was learned; runs and memories stay.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@daemon_options
def reset(target: Target, yes: bool) -> None:
    """Forget what was learned, and do not learn it again from the runs so far. Runs and memories stay.

    It cannot be taken back: importing an export of before brings nothing, since its runs are known here.

    \b
    Examples:
      memory-agent sona reset
      memory-agent sona reset --user alice --yes --json
    """
    if not yes:
        confirm("forget what was learned from the runs so far, for good?")
    with open_memory(target, "sona_reset") as memory:
        left_out = memory.sona.reset()
    if target.as_json:
        print_document({"left_out": left_out})
    else:
        click.echo(f"forgot what was learned; runs that are left out from now on: {left_out}")


@sona.command(short_help="Write what there is to learn from to a file.")
@_file
@daemon_options
def export(target: Target, file: Path) -> None:
    """Write the runs that have ended, with their recalls, to FILE, or with - to standard output.

    What is learned follows from them alone. They name memories by id; their words can be guessed from the vectors of
    what was asked, so keep the file as private as the memory itself. An existing file is replaced as a whole.

    \b
    Examples:
      memory-agent sona export learned.sona
      memory-agent sona export - --user alice > alice.sona
    """
    if target.as_json and file == _STANDARD_STREAM:
        raise click.UsageError("--json and - both take standard output: name a file")
    with open_for_reading(target, "sona_export") as memory:
        data = memory.sona.export()
        note_unknown(target)
    if file == _STANDARD_STREAM:
        sys.stdout.buffer.write(data)
    else:
        from memory_agent.care.export import write_file  # imports the engines

        write_file(file, [data])
        _tell(target, {"file": str(file), "bytes": len(data)}, f"wrote {size(len(data))} to {file}")


@sona.command("import", short_help="Learn from what `sona export` wrote, too.")
@_file
@daemon_options
def import_file(target: Target, file: Path) -> None:
    """Learn from the runs in FILE, which `sona export` wrote, too; - is standard input.

    Runs that are known here already are left as they are, and memories that are not stored here are left out. A file
    that is damaged is refused and changes nothing.

    \b
    Examples:
      memory-agent sona import learned.sona
      memory-agent sona import - --user alice < alice.sona
    """
    data = sys.stdin.buffer.read() if file == _STANDARD_STREAM else file.read_bytes()
    with open_memory(target, "sona_import") as memory:
        added = memory.sona.load(data)
    _tell(target, {"added": added}, f"runs that were new here: {added}")


def print_status(found: SonaStatus) -> None:
    """Print what the learner says of itself, in words."""
    figures = {
        "mode": _MODES[found.mode],
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
    """Return where the gate stands, and why, in plain words; `credited` is how many lessons with credit there are."""
    if gate.state == "shadow":
        needed = f"{credited} of the {SHADOW_LESSONS} lessons with credit that a trial needs"
        return f"shadow: it learns and changes no answer yet; {needed}"
    contests = f"the learned ranking won {gate.won} of {gate.won + gate.lost} decided recalls"
    against = f"wealth of the bet that it harms {gate.harm:.3g} of {THRESHOLD:g}"
    if gate.state == "trial":
        return f"trial: {contests}; wealth {gate.evidence:.3g} of {gate.threshold:g} needed; {against}"
    if gate.state == "on":
        return f"on: {contests} since then; {against}"
    return f"off: {contests}; {against}; it is tried again later"


def gain_sentence(found: SonaStatus) -> str:
    """Return what the learned ranking wins over chance, with its interval."""
    if found.gain is None:
        return "not known: no recall was decided yet"
    low, high = found.gain_low, found.gain_high
    interval = "" if low is None or high is None else f" (95 %: {low:+.3f} to {high:+.3f})"
    return f"{found.gain:+.3f}{interval} of the decided recalls, above the half that chance wins"


def _tell(target: Target, document: dict[str, object], sentence: str) -> None:
    if target.as_json:
        print_document(document)
    else:
        click.echo(sentence)
