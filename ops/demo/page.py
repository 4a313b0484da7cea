"""Shows the address of the page and, on a terminal, keeps the daemon running so that the user can visit it."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

from memory_agent.evaluation import child_environment
from ops.demo.stage import HEROINE, PATIENCE_S, Stage

_VISIT_S = 60.0


def show_page(stage: Stage) -> None:
    """Print the address of the page. On a terminal, it is printed with a ticket, and the demo waits for Enter."""
    stage.screen.say(f"$ memory-agent open --user {HEROINE} --print", "bold")
    address = _address(stage)
    stage.screen.promise(
        "the page is served, and the address that the command prints signs a browser in", _signs_in(address)
    )
    if stage.screen.is_interactive:
        stage.screen.console.print(_address(stage), soft_wrap=True)  # in one piece, so that it can be clicked
        stage.screen.pause(
            "Open it to see these three weeks. Press Enter to end the demo; it also ends after a minute.", _VISIT_S
        )
    else:
        stage.screen.say(
            f"The daemon is about to stop, so {address.partition('#')[0]} becomes unavailable; on a terminal, the demo "
            "first waits for you to visit the page. `memory-agent open` shows the page of your own daemon.",
            "dim",
        )


def _address(stage: Stage) -> str:
    """Return the page's address, with a ticket that can be used once to sign in."""
    command = [sys.executable, "-m", "memory_agent", "open", "--data-dir", str(stage.data_dir), "--user", HEROINE]
    said = subprocess.run(
        [*command, "--no-start", "--print", "--json"],
        stdout=subprocess.PIPE,
        env=child_environment(),
        check=True,
        timeout=PATIENCE_S,
    ).stdout
    address: str = json.loads(said)["address"]
    return address


def _signs_in(address: str) -> bool:
    """Load the page as a browser does, and sign in with the ticket in the address."""
    with urlopen(address, timeout=PATIENCE_S) as page:
        is_page = page.headers.get_content_type() == "text/html"
    body = json.dumps({"token": parse_qs(urlsplit(address).fragment)["token"][0]}).encode()
    place = address.partition("#")[0]
    request = Request(f"{place}session", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=PATIENCE_S) as session:
        return is_page and "recall" in json.load(session)["scopes"]
