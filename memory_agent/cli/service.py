"""`stop` ends the running daemon; `service` installs it as a service of this user, or removes that service."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from memory_agent.cli.command import settings_words
from memory_agent.cli.failure import Failure, confirm, note
from memory_agent.cli.group import FailureGroup
from memory_agent.cli.options import UNUSED, Target, options_where_user
from memory_agent.cli.render import plain, printed_json

_STOP_WITHIN_S = 60.0


@click.command()
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=_STOP_WITHIN_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the daemon to stop.",
)
@options_where_user(UNUSED)
def stop(target: Target, timeout: float) -> None:
    """Stop the daemon of the data folder, and wait until it has stopped. Nothing acknowledged is lost.

    The daemon finishes the work in progress. After an upgrade, this command stops the daemon of the previous version.
    The new version is started by the next session of a coding agent, by `memory-agent serve`, or by the service
    manager. The exit code is 1 if no daemon is running, or if the daemon does not stop in time.

    \b
    Examples:
      memory-agent stop
      memory-agent stop --data-dir /srv/memory --timeout 120
    """
    from memory_agent.daemon.stopping import stop_daemon

    hint = stop_daemon(target.layout, timeout)
    if printed_json(target.as_json, {"is_stopped": True, "hint": hint}):
        return
    click.echo(f"the daemon of {target.data_dir} has stopped")
    if hint:
        note(hint)


class Done(msgspec.Struct, kw_only=True):
    """The service file, its text after the command ("" if removed), and whether it was written or removed."""

    path: str
    text: str
    is_done: bool
    advice: tuple[str, ...] = ()


@click.group(cls=FailureGroup)
def service() -> None:
    """Run the daemon of the data folder as a service of this user: at every login, and again after a crash.

    The service is a unit of systemd's user manager on Linux, and a launch agent on macOS. For a machine-wide service,
    see ops/deploy.

    \b
    Examples:
      memory-agent service install
      memory-agent service remove
    """


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the file; change nothing.")
_YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation (the default without a terminal).")


@service.command(short_help="Write the service's file, and start it.")
@click.option("--full", is_flag=True, help="Run with Ray, for many users. Default: as one process (serve --light).")
@_DRY_RUN
@_YES
@options_where_user(UNUSED)
def install(target: Target, full: bool, dry_run: bool, yes: bool) -> None:
    """Show the service's file, ask for confirmation, write the file, and start the daemon as this user's service.

    The service runs `serve` with the given --data-dir, --config and --set, but without the MEMORY_AGENT variables of
    this shell. Repeat the command after an upgrade or to change the options; this restarts the daemon.

    \b
    Examples:
      memory-agent service install
      memory-agent service install --dry-run
      memory-agent service install --data-dir /srv/memory --set daemon.http.listen=127.0.0.1:7430
    """
    from memory_agent.integrations import this_program, user_service

    given = click.get_current_context().params
    form = () if full else ("--light",)
    words = ["serve", *form, "--data-dir", str(target.data_dir), *settings_words(given["config"], given["settings"])]
    own = user_service([this_program(), *words], target.layout, Path.home())
    if not target.as_json:
        click.echo(f"{plain(str(own.path))}:\n{plain(own.text)}")
    if own.state == "edited":
        raise Failure("usage", f"{own.path} was edited or is not from this program; move it elsewhere first")
    if dry_run:
        _print(target, Done(path=str(own.path), text=own.text, is_done=False), "nothing is written: --dry-run")
        return
    own.require_manager()
    if own.state == "absent" and target.layout.daemon_runs():
        raise Failure("daemon_running", f"a daemon already serves {target.data_dir}; first run: memory-agent stop")
    if not yes and sys.stdin.isatty():
        confirm("Write this file, and start the service?")
    try:
        own.install()
    except OSError as error:
        reason = f"{error.filename or own.path} cannot be written: {error.strerror}"
        raise Failure("io", f"{reason}; an administrator can install ops/deploy/memory-agent.service") from error
    done = Done(path=str(own.path), text=own.text, is_done=True, advice=own.advice)
    _print(target, done, "the service is running", *own.advice)


@service.command(short_help="Stop the service, and remove its file.")
@_DRY_RUN
@_YES
@options_where_user(UNUSED)
def remove(target: Target, dry_run: bool, yes: bool) -> None:
    """Stop the service of this user, and remove its file. The data stays. A file that was edited is kept.

    \b
    Examples:
      memory-agent service remove
      memory-agent service remove --dry-run
    """
    from memory_agent.integrations import user_service

    own = user_service((), target.layout, Path.home())
    if own.state == "absent":
        _print(target, Done(path=str(own.path), text="", is_done=False), "no service is installed")
        return
    if own.state == "edited":
        reason = "was edited or is not from this program, so it is kept; stop the service and remove the file yourself"
        raise Failure("usage", f"{own.path} {reason}")
    if not target.as_json:
        click.echo(f"remove {plain(str(own.path))}")
    if dry_run:
        _print(target, Done(path=str(own.path), text="", is_done=False), "nothing is removed: --dry-run")
        return
    own.require_manager()
    if not yes and sys.stdin.isatty():
        confirm("Stop the service, and remove this file?")
    own.remove()
    _print(target, Done(path=str(own.path), text="", is_done=True), "the service is removed")


def _print(target: Target, done: Done, *notes: str) -> None:
    if printed_json(target.as_json, done):
        return
    for line in notes:
        note(line)
