"""Starts a data folder's daemon, detached from the client's process, if the client finds no running daemon.

The daemon inherits only the variables that it needs. Its standard input is the locked file `run/start.lock`, so that no
other client starts a daemon until `serve` holds the folder or has exited. Its options are stored, so that hooks can
restart a daemon that stopped because it was idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memory_agent.layout import DATA_DIR_VARIABLE, KEY_FILE_VARIABLE, TOKEN_VARIABLE, Layout

# -P: neither the data folder nor the client's project is searched for modules
_COMMAND = ("-P", "-m", "memory_agent", "serve", "--on-demand")
_OWN = "MEMORY_AGENT_"
_OF_CLIENTS = (TOKEN_VARIABLE, KEY_FILE_VARIABLE)
_KEPT = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
        # variables for the download of a model, and for the API of a provider
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
        *("PIP_CERT", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_CONFIG_FILE", "HF_ENDPOINT", "HF_HOME"),
    }
)
_PAUSE_S = 30.0
"""After a start attempt, hooks wait this long before they try again, because the daemon may be unable to start."""


class Start(NamedTuple):
    """How to start a daemon: further options of `serve`, and the variables that its settings name."""

    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


def start_daemon(layout: Layout, start: Start) -> Any:
    """Start the daemon of the folder; return its process, or None if one is already running or starting.

    Raises `SettingsError` or `OSError` if the data folder cannot be used.
    """
    import subprocess  # imported late: most clients find a running daemon

    claim = layout.claim_start()
    if claim is None:  # another client is starting a daemon
        return None
    with claim, contextlib.ExitStack() as stack:
        if layout.daemon_runs():  # another client has started the daemon and released the claim
            return None
        _write_private(layout.start, json.dumps(start._asdict()).encode())
        os.utime(claim.fileno())
        log = os.open(layout.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        stack.callback(os.close, log)
        return subprocess.Popen(
            [sys.executable, *_COMMAND, "--data-dir", str(layout.data_dir), *start.options],
            stdin=claim,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd=layout.data_dir,  # the client's working folder may be removed
            env=daemon_environment(start.variables, os.environ),
            start_new_session=True,  # it outlives the client
            umask=0o077,
        )


def record_start(layout: Layout, start: Start) -> None:
    """Store how to start a folder's daemon, unless that is already stored. Raises `SettingsError` and `OSError`."""
    if not layout.start.exists():
        layout.create()
        _write_private(layout.start, json.dumps(start._asdict()).encode())


def restart_daemon(layout: Layout) -> Any:
    """Start a daemon with the options with which it was last started, or with the default settings in an unused folder;
    return its process.

    Returns None if a process holds the folder, if the daemon was stopped with `memory-agent stop`, if a variable that
    it needs is missing, if another attempt was made recently, or if the folder cannot be used.
    """
    with contextlib.suppress(OSError, ValueError, TypeError):
        if layout.daemon_runs():
            return None
        if layout.start.exists():
            said = json.loads(layout.start.read_bytes())
            start = Start(**{name: tuple(words) for name, words in said.items()})
        elif not layout.lock.exists() and not has_settings(os.environ):
            start = Start()
        else:
            return None
        tried_s = layout.start_lock.stat().st_mtime if layout.start_lock.exists() else 0.0
        if time.time() - tried_s > _PAUSE_S and os.environ.keys() >= set(start.variables):
            return start_daemon(layout, start)
    return None


def daemon_environment(named: Collection[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a daemon: those that any daemon may need, its settings, and those in `named`.

    >>> daemon_environment(["KEY"], {"HOME": "/home/ann", "KEY": "k", "ANTHROPIC_API_KEY": "s", "LC_ALL": "C"})
    {'HOME': '/home/ann', 'KEY': 'k', 'LC_ALL': 'C'}
    """
    kept = {
        name: text
        for name, text in variables.items()
        if name in named
        or name.upper() in _KEPT
        or name.startswith("LC_")
        or (name.startswith(_OWN) and name not in _OF_CLIENTS)
    }
    own = str(Path(__file__).parents[1])
    searched = [os.path.abspath(one) for one in variables.get("PYTHONPATH", "").split(os.pathsep) if one]
    if "PYTHONPATH" not in kept and own in searched:
        kept["PYTHONPATH"] = own  # this program was found there
    return kept


def has_settings(variables: Mapping[str, str]) -> bool:
    """Return whether any environment variable is a daemon setting."""
    others = (*_OF_CLIENTS, DATA_DIR_VARIABLE)
    return any(name.startswith(_OWN) and name not in others for name in variables)


def _write_private(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".tmp")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    unfinished.replace(path)
