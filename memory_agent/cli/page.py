"""`open`: show a user's memory in the browser."""

from __future__ import annotations

import json
import os
import sys
import time
from urllib.parse import urlencode

import click

from memory_agent.cli.command import SectionedCommand
from memory_agent.cli.door import Daemon, door_options
from memory_agent.cli.failure import Failure, note
from memory_agent.errors import UnavailableError
from memory_agent.exchange import Door, Exchange
from relay import validate_user_id

_PATIENCE_S = 30.0
"""Time for a daemon to start and to respond."""
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@click.command("open", cls=SectionedCommand)
@click.option("--user", "user_id", metavar="ID", help="The user of the memory. Default: the key's user, or `default`.")
@click.option("--print", "is_printed", is_flag=True, help="Print the address instead of opening a browser.")
@door_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else, on standard output.")
def open_page(user_id: str | None, is_printed: bool, daemon: Daemon, as_json: bool) -> None:
    """Show a memory in the browser: its timeline, explained searches, runs, and what was learned.

    The daemon serves the page only to this machine, unless the settings allow other machines. Opening the address signs
    the browser in with the key's permissions; this works once, within a minute. If there is no browser, the address is
    printed. If no daemon is running, one is started.

    \b
    Examples:
      memory-agent open
      memory-agent open --user alice --print
    """
    if user_id is not None:
        validate_user_id(user_id)
    until_s = time.monotonic() + _PATIENCE_S
    door = daemon.finder()(until_s)
    fragment = {"token": _ticket(door, user_id, until_s)} | ({} if user_id is None else {"user": user_id})
    address = f"{door.url}/page/#{urlencode(fragment)}"
    is_opened = not is_printed and _opened(address)
    if as_json:
        click.echo(json.dumps({"address": address, "opened": is_opened}))
    elif is_opened:
        click.echo(f"opened {door.url}/page/ in the browser")
    else:
        click.echo(address)
        note("the address works once, within a minute")


def _ticket(door: Door, user_id: str | None, until_s: float) -> str:
    """Return a ticket from the daemon. Raises `UnavailableError`, and `Failure` if the daemon refuses or the key is for
    another user.
    """
    exchange = Exchange(door, until_s)
    try:
        answer = exchange.send("/page/ticket", b"").receive()
    except OSError as error:
        raise UnavailableError(f"the daemon at {door.url} does not respond: {error or type(error).__name__}") from error
    finally:
        exchange.close()
    try:
        said = json.loads(answer.body)
        if answer.status != 200:
            raise Failure(said["code"], said["detail"], said["retryable"])
        ticket, only = str(said["ticket"]), said["user_id"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"{door.url} is not the address of a daemon with a page: {answer.first}") from error
    if user_id is not None and only is not None and only != user_id:
        raise Failure("user_not_allowed", f"the key is for the user {only}, not {user_id}", False)
    return ticket


def _opened(address: str) -> bool:
    """Open the address in a graphical browser; return False if there is none."""
    if sys.platform != "darwin" and not any(os.environ.get(name) for name in _SCREENS):
        return False  # a text browser cannot show the page
    import webbrowser  # imported late: it imports subprocess

    return webbrowser.open(address)
