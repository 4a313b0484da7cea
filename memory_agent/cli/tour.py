"""`tour`: try recall, the page and `connect` on the user's own past sessions. Each step is a command, shown before it
runs.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from rich.text import Text

from memory_agent.cli.access import open_memory
from memory_agent.cli.exit_codes import ExitCode
from memory_agent.cli.failure import Misuse, note
from memory_agent.cli.options import Target, common_options, typed
from memory_agent.cli.progress import progress_bars
from memory_agent.cli.publish import Interrupts
from memory_agent.cli.render import counted, emit, one_line, plain, print_document, print_table
from memory_agent.integrations import CLIENTS
from memory_agent.records.memories import Kind
from memory_agent.sessions.finding import Places
from memory_agent.sessions.importing import Scope, SessionImport
from memory_agent.settings import Settings
from memory_agent.storage.folders import user_folder
from relay import Masker

_MOST_EVENTS = 5_000
"""Maximum number of events to import, which takes 20 to 50 s on two cores without a daemon (measured)."""
_QUESTION_CHARS = range(25, 120)
_PROMPTS = ("history.run.started", "history.user_msg")
_SAMPLE: tuple[tuple[Kind, str], ...] = (
    ("finding", "The staging deploy hangs because the build agent is outside the VPN; connect it before the rollout."),
    ("finding", "Users were signed out at random: two tabs refreshed one token. A mutex per session fixed it."),
    ("strategy", "Releases: freeze on Thursday, tag the candidate, run the soak test overnight, publish on Friday."),
    ("finding", "The invoice export is slow because it loads every line item; a join reduced it from 40 s to 2 s."),
)
_SAMPLE_QUESTION = "why does the rollout to staging hang?"


class _Found(NamedTuple):
    """The events of all sessions: time, client, session, project and, for a prompt suitable as a question, its text."""

    events: list[tuple[str, str, str, str, str]]
    bad: int

    @property
    def clients(self) -> list[str]:
        return sorted({event[1] for event in self.events})

    @property
    def since(self) -> str | None:
        """The time of the first event to import, or None to import all events."""
        return self.events[-_MOST_EVENTS][0] if len(self.events) > _MOST_EVENTS else None

    @property
    def question(self) -> str | None:
        prompts = [text for at, *_, text in self.events if text and at >= (self.since or "")]
        return one_line(Masker().text(max(prompts, key=len))) if prompts else None


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the commands that would run, and the sessions found; run nothing.")
@common_options
def tour(target: Target, dry_run: bool) -> None:
    """Try recall on your own past sessions: import them, ask about something you know, see the page, and connect an
    agent.

    Looks for past sessions of coding agents on this machine, and shows what it found. Each further step shows a command
    and asks before running it. Until you agree, nothing is written and no daemon is started. Ctrl-C ends the tour; a
    second tour does not repeat finished work. If no sessions are found, the tour offers an example in a temporary
    folder, and deletes this folder at the end.

    \b
    Examples:
      memory-agent tour
      memory-agent tour --dry-run
    """
    if target.as_json and not dry_run:
        raise click.UsageError("--json requires --dry-run, because the tour asks questions")
    if not dry_run and not sys.stdin.isatty():
        raise Misuse("usage", "the tour asks questions, and standard input is not a terminal; use --dry-run")
    found = _look(target)
    if dry_run:
        _print_plan(target, found)
        return
    try:
        _with_sessions(target, found) if found.events else _with_example(target)
    except (click.Abort, KeyboardInterrupt):
        click.echo()
        note("the tour has ended; `memory-agent tour` continues it")
        raise click.Abort from None


def _look(target: Target) -> _Found:
    with progress_bars("bytes") as report:
        imported = SessionImport(Places((), Path.home(), os.environ), Scope(target.user_id), report)
        events = sorted(_summary(event) for event in imported.events())
    return _Found(events, imported.counts.bad)


def _summary(event: dict[str, Any]) -> tuple[str, str, str, str, str]:
    said = event["payload"].get("objective") or event["payload"].get("text") or ""
    is_question = (
        event["event_type"] in _PROMPTS and len(said) in _QUESTION_CHARS and said[:1].isalpha() and "\n" not in said
    )
    where = event.get("channel_id", ""), said if is_question else ""
    return event["timestamp"], event["actor_id"], event.get("session_id", ""), *where


def _print_found(found: _Found) -> None:
    rows = []
    for client in found.clients:
        own = [event for event in found.events if event[1] == client]
        sessions, projects = len({event[2] for event in own}), len({event[3] for event in own if event[3]})
        rows.append((client, sessions, len(own), projects, own[0][0][:10], own[-1][0][:10]))
    print_table("past sessions on this machine", ("agent", "sessions", "entries", "projects", "from", "to"), rows)
    if found.bad:
        note(f"{counted(found.bad, 'place')} cannot be read; `memory-agent import-sessions --dry-run` lists them")


def _print_plan(target: Target, found: _Found) -> None:
    commands = [f"memory-agent {shlex.join(words)}" for words in _commands(found)]
    if target.as_json:
        sessions = Counter(client for client, _ in {event[1:3] for event in found.events})
        document = {"sessions": sessions, "entries": len(found.events), "data_dir": str(target.data_dir)}
        print_document(document | {"question": found.question, "commands": commands})
        return
    if found.events:
        _print_found(found)
    else:
        click.echo("no past sessions found; the tour would show an example in a temporary folder")
    click.echo("the tour would ask before running each of these commands:")
    for command in commands:
        click.echo(f"  {plain(command)}")


def _commands(found: _Found) -> Iterator[list[str]]:
    own = _own_options()
    if not found.events:
        yield ["recall", _SAMPLE_QUESTION]
        return
    yield _import(found)
    yield from ([*words, *own] for words in _questions(found.question or "your question"))
    yield ["open", *own]
    yield from (["connect", client, *own] for client in _agents(found))


def _import(found: _Found) -> list[str]:
    since = [] if found.since is None else ["--since", found.since]
    return ["import-sessions", *since, "--wait", *_own_options()]


def _questions(question: str) -> list[list[str]]:
    """Return two commands: one answers a question, the other explains the answer. Neither is logged or used for
    learning.
    """
    words = ["recall", question.lstrip("- "), "--top-k", "3", "--unlogged"]
    return [words, [*words, "--explain"]]


def _agents(found: _Found) -> list[str]:
    return [client for client in CLIENTS if client in found.clients]


def _own_options() -> list[str]:
    """Return those options of this command line that are passed to every command of the tour."""
    given = click.get_current_context().params
    words = [("--user", given["user"])] if typed("user") else []
    words += [("--data-dir", str(given["data_dir"].absolute()))] if typed("data_dir") else []
    words += [("--config", str(given["config"].absolute()))] if typed("config") else []
    words += [("--set", pair) for pair in given["settings"]]
    return [word for pair in words for word in pair]


def _with_sessions(target: Target, found: _Found) -> None:
    _print_found(found)
    own = _own_options()
    _head("1. Import", _import_facts(target, found))
    if click.confirm("Import them?"):
        _run(_import(found))
    has_memories = user_folder(target.data_dir, target.user_id).exists()
    if has_memories:
        _head("2. Ask", "In your own words, ask a question that these sessions answer and whose answer you know.")
        _ask(found.question, own)
        _head("3. The page", _page_facts(target))
        if click.confirm("Open the page?"):
            _run(["open", *own])
    else:
        note("nothing was imported, so there is nothing to ask")
    _connect(_agents(found), own)
    _head("What next", "`memory-agent --help` lists the commands; `memory-agent completion install` completes them.")
    if has_memories:
        click.echo("To erase all memories again: memory-agent " + shlex.join(["forget", "--user-all", *own]))


def _import_facts(target: Target, found: _Found) -> str:
    entries = counted(len(found.events), "entry", "entries")
    if found.since is not None:
        entries = f"the newest {_MOST_EVENTS:,} of {entries} (`memory-agent import-sessions` imports all)"
    state = "" if target.data_dir.exists() else ", which is created"
    return f"Stores {entries} in {target.data_dir}{state}. Secrets are masked. Existing entries are skipped."


def _page_facts(target: Target) -> str:
    shows = "Shows what is in the memory, and the reasons for its answers."
    if target.layout.daemon_runs():
        return f"{shows} The daemon of {target.data_dir} serves it."
    return f"{shows} It starts a daemon for {target.data_dir}, which keeps running until `memory-agent stop`."


def _ask(suggestion: str | None, own: Sequence[str]) -> None:
    while click.confirm("Ask a question?", default=suggestion is not None):
        question = click.prompt("Question", default=suggestion, type=str).strip()
        if not question.lstrip("- "):
            continue
        answer, reasons = _questions(question)
        if _run([*answer, *own]) == 0:
            click.echo("Why in this order? The parts of each score:")
            _run([*reasons, *own])
        suggestion = None


def _connect(agents: Sequence[str], own: Sequence[str]) -> None:
    for client in agents:
        title = CLIENTS[client].title
        _head(f"Connect {title}", f"{title} then recalls automatically. You confirm the change after seeing it.")
        if click.confirm(f"Show the change for {title}?"):
            words = ["connect", client, *own]
            with Interrupts() as interrupts:  # `connect` returns the same exit code if the user declines
                interrupts.cut_short(partial(_run, words, may_decline=True))
            if interrupts.heard:
                raise click.Abort


def _with_example(target: Target) -> None:
    click.echo("no past sessions of coding agents were found; `memory-agent import-sessions --dry-run` shows where")
    if not click.confirm("Try it with four example memories, in a temporary folder that is deleted afterwards?"):
        return
    with tempfile.TemporaryDirectory(prefix="memory-agent-tour-") as folder:
        settings = msgspec.structs.replace(Settings(), embedder=target.settings.embedder)
        example = replace(target, data_dir=Path(folder), settings=settings, token=None, key_file=None)
        with open_memory(example, "remember") as memory:
            for kind, text in _SAMPLE:
                memory.remember(text, kind=kind)
                click.echo(f"  {kind}: {text}")
        _ask(_SAMPLE_QUESTION, ["--data-dir", folder, *(("--user", target.user_id) if target.user_named else ())])
    _head("What next", f"Connect a coding agent: memory-agent connect CLIENT ({', '.join(CLIENTS)})")


def _head(title: str, facts: str) -> None:
    emit(Text.assemble(f"\n{title}\n", style="bold"))
    emit(Text(plain(facts)))


def _run(words: Sequence[str], *, may_decline: bool = False) -> int:
    """Show a command, run it in this process, and return its exit code. An interrupted command ends the tour."""
    emit(Text(plain(f"$ memory-agent {shlex.join(words)}"), style="cyan"))
    program = click.get_current_context().find_root().command
    try:
        code = program.main([*words], prog_name="memory-agent", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else ExitCode.FAILED
    if code == ExitCode.INTERRUPTED and not may_decline:
        raise click.Abort
    return code
