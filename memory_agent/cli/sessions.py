"""`import-sessions`: import past sessions of coding agents and chats as events."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from memory_agent.cli.access import listens, open_client, open_memory, uses_daemon
from memory_agent.cli.command import SectionedCommand, as_struct
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import note
from memory_agent.cli.options import Moment, Target, daemon_options
from memory_agent.cli.progress import Report, progress_bars
from memory_agent.cli.publish import (
    INTERRUPTED,
    BadLine,
    Interrupts,
    Observer,
    Sending,
    relay_ingest,
    send,
    unreachable,
    wait_until_recallable,
)
from memory_agent.cli.render import counted, print_document
from memory_agent.errors import UnavailableError
from memory_agent.sessions.finding import NAMES, Places
from memory_agent.sessions.importing import ImportCounts, Scope, SessionImport

if TYPE_CHECKING:
    from memory_agent.memory import Memory

_BATCH = 64
_FLUSH_S = 300.0
_LOOK_AGAIN_S = 1.0
_MOST_PRINTED = 20


class Delivered(msgspec.Struct, kw_only=True):
    """Counts of `new`, already `known` and `rejected` events. `noise` counts, by reason, events that create no memory.

    `forgotten` counts events whose memory was forgotten and stays forgotten.
    """

    new: int = 0
    known: int = 0
    rejected: int = 0
    noise: dict[str, int] = {}
    acked_through: dict[str, int] = {}
    failure: str | None = None
    forgotten: int = 0


class _Result(msgspec.Struct, kw_only=True):
    """The result of an import. `looked_in`: the files, folders and patterns that were searched for sessions."""

    found: ImportCounts
    delivered: Delivered | None
    looked_in: list[str]


class _Wanted(NamedTuple):
    """Which sessions to import."""

    paths: tuple[Path, ...]
    clients: tuple[str, ...]
    since: datetime | None
    project: Path | None


@click.command("import-sessions", cls=SectionedCommand)
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--client",
    "clients",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="CLIENT",
    help=f"Only sessions of this client: {', '.join(NAMES)}. May be repeated.",
)
@click.option("--since", type=Moment(), help="Only events since then.")
@click.option(
    "--project", type=click.Path(path_type=Path), metavar="DIR", help="Only sessions in this folder or below it."
)
@click.option("--dry-run", is_flag=True, help="Read and count; import nothing.")
@click.option("--watch", is_flag=True, help="Keep importing additions to the files until interrupted.")
@click.option("--wait", is_flag=True, help="Wait until everything is recallable or in quarantine.")
@click.option("--relay", "ingest", metavar="URL", help="The relay's endpoint. Default: the data folder's relay.")
@daemon_options
@as_struct("wanted", _Wanted)
def import_sessions(
    target: Target, wanted: _Wanted, dry_run: bool, watch: bool, wait: bool, ingest: str | None
) -> None:
    """Import past sessions from PATHS (files or folders), or from the clients' folders on this machine.

    Reads sessions of Claude Code, Codex, Gemini CLI, OpenHands and mini-swe-agent; from PATHS, it also reads sessions
    of SWE-agent, ATIF files, and data exports of ChatGPT and Claude.ai (also as .zip). Prompts, answers and commands
    are published through the relay with their original times, and with secrets masked. If no relay is running, they are
    written directly to the files. Turns and runs keep their outcomes. A session's project becomes its channel: `recall
    --channel project:DIR`. Text added to a prompt by the client or by a memory, and the output of read-only tools, are
    left out and counted. Unreadable input is reported (exit code 1). Repeating an import changes nothing and does not
    restore forgotten memories. After Ctrl-C, the command prints what was imported.

    \b
    Examples:
      memory-agent import-sessions --dry-run
      memory-agent import-sessions --since 30d --project ~/shop
      memory-agent import-sessions conversations.json runs/ --user alice --wait
      memory-agent import-sessions --client claude-code --watch
    """
    if dry_run and (watch or wait):
        raise click.UsageError("--dry-run cannot be combined with --watch or --wait")
    if watch and wait:
        raise click.UsageError("--watch cannot be combined with --wait")
    places = Places(wanted.paths, Path.home(), os.environ, wanted.clients or NAMES)
    project = None if wanted.project is None else str(wanted.project.expanduser().absolute())
    scope = Scope(target.user_id, wanted.since, project)
    delivered = None if dry_run else Delivered()
    with progress_bars("bytes") as report, Interrupts() as interrupts:
        imported = SessionImport(places, scope, report)
        if delivered is None:
            interrupts.cut_short(lambda: sum(1 for _ in imported.events()))
        elif watch:
            _follow(target, ingest, imported, delivered, interrupts)
        else:
            _deliver(target, ingest, _with_forgotten(target, imported.events(), delivered), delivered, interrupts)
            if wait and delivered.failure is None:
                interrupts.cut_short(lambda: _wait(target, delivered, report))
            if interrupts.heard:
                delivered.failure = delivered.failure or INTERRUPTED
    result = _Result(found=imported.counts, delivered=delivered, looked_in=places.names())
    print_document(result) if target.as_json else _print(result)
    if interrupts.heard and not watch:
        raise click.Abort
    if imported.counts.bad or (delivered is not None and (delivered.rejected or delivered.failure)):
        raise SystemExit(ExitCode.FAILED)


def _follow(
    target: Target, ingest: str | None, imported: SessionImport, delivered: Delivered, interrupts: Interrupts
) -> None:
    """Import the files' content, then all additions, until Ctrl-C or a relay failure."""
    while delivered.failure is None and not interrupts.heard:
        news = _with_forgotten(target, imported.events(is_growing=True), delivered)
        _deliver(target, ingest, news, delivered, interrupts)
        interrupts.cut_short(lambda: time.sleep(_LOOK_AGAIN_S))
    if interrupts.heard:
        note("no longer watching")


def _with_forgotten(target: Target, events: Iterator[dict[str, Any]], delivered: Delivered) -> Iterator[dict[str, Any]]:
    from memory_agent.care import forgotten_events  # imports the engines

    is_forgotten = forgotten_events(target.data_dir, target.user_id)
    for event in events:
        delivered.forgotten += is_forgotten(event["event_id"])
        yield event


def _deliver(
    target: Target, ingest: str | None, events: Iterator[dict[str, Any]], delivered: Delivered, interrupts: Interrupts
) -> None:
    """Send events through the relay, or ingest them into the files if no daemon is running."""
    first = interrupts.cut_short(lambda: next(events, None))
    if first is None:
        return
    events = chain((first,), events)
    endpoint = relay_ingest(target, ingest)
    if listens(endpoint):
        _publish(target, endpoint, events, delivered, interrupts)
    elif uses_daemon(target) or ingest is not None:
        raise UnavailableError(unreachable(target, endpoint, is_named=ingest is not None, may_spool=False))
    else:
        with open_memory(target, "remember") as memory:
            _ingest(memory, events, delivered, interrupts)  # type: ignore[arg-type]  # a `Memory` without a daemon


def _publish(
    target: Target, endpoint: str, events: Iterator[dict[str, Any]], delivered: Delivered, interrupts: Interrupts
) -> None:
    summary = send(target, enumerate(events, 1), Sending(endpoint, _FLUSH_S, Observer()), interrupts)
    delivered.new += summary.acknowledged
    delivered.known += summary.duplicates
    delivered.rejected += summary.rejected
    delivered.acked_through |= summary.acked_through
    delivered.failure = summary.failure
    if summary.unacknowledged and summary.failure is None:
        delivered.failure = f"no ack for {counted(summary.unacknowledged, 'event')}; repeat the import"


def _ingest(memory: Memory, events: Iterator[dict[str, Any]], delivered: Delivered, interrupts: Interrupts) -> None:
    noise = delivered.noise = dict(delivered.noise)
    while batch := interrupts.cut_short(lambda: list(islice(events, _BATCH))):
        report = memory.ingest(batch)
        delivered.new += report.kept
        delivered.known += report.duplicates
        delivered.rejected += len(report.rejected)
        for reason, count in report.dropped.items():
            noise[reason] = noise.get(reason, 0) + count
        for one in report.rejected:
            note(str(BadLine(line=0, field=f"event {one.event_id}", reason=one.reason)))


def _wait(target: Target, delivered: Delivered, report: Report) -> None:
    if delivered.acked_through:
        with open_client(target) as client:
            events = delivered.new + delivered.known
            wait_until_recallable(client, delivered.acked_through, events, _FLUSH_S, report)


def _print(result: _Result) -> None:
    found, delivered = result.found, result.delivered
    for place in found.bad_places[:_MOST_PRINTED]:
        note(f"cannot be read: {place}")
    if found.bad > _MOST_PRINTED:
        note(f"and {found.bad - _MOST_PRINTED} more that cannot be read; --json lists them")
    click.echo(f"sessions: {_counted(found.sessions)}")
    if not found.sessions:
        for name in result.looked_in:
            note(f"looked for sessions in {name}")
        if not result.looked_in:
            note("no folder was searched; specify files or folders")
    click.echo(f"taken: {_counted(found.taken)}")
    if found.left:
        click.echo(f"left out: {_counted(found.left)}")
    if found.skipped_files:
        click.echo(f"files that are not sessions: {_counted(found.skipped_files)}")
    if delivered is None:
        click.echo("nothing was imported (--dry-run)")
        return
    noise = (
        f", {sum(delivered.noise.values())} created no memory ({_counted(delivered.noise)})" if delivered.noise else ""
    )
    known = max(0, delivered.known - delivered.forgotten)
    forgotten = f", {delivered.forgotten} forgotten" if delivered.forgotten else ""
    click.echo(f"imported {delivered.new} new, {known} already present{forgotten}{noise}")
    if delivered.forgotten:
        note("forgotten memories were not restored; to restore them, use `memory-agent import` with an earlier export")
    if delivered.failure is not None:
        note(delivered.failure)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
