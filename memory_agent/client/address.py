"""Finds a daemon's endpoint and the key to present, and decides when to resend a request."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from memory_agent.errors import ConnectionLostError, InvalidInputError, SettingsError, UnavailableError
from memory_agent.layout import KEY_FILE_VARIABLE, TOKEN_VARIABLE, Layout, LocalCall, default_data_dir
from memory_agent.verbs.table import Call
from relay import Identity, RelaySettingsError, identity_of, read_key_file

_GRACE_S = 0.5
"""Added to the client's timeout, so that the daemon's own report of a missed deadline arrives first."""
_MOST_LOSSES = 2  # because the request itself may have crashed the daemon
_RESTART_S = 5.0  # systemd restarts a service after two seconds (`integrations/units`)
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Address:
    """A daemon's address. `is_local`: whether `endpoint` is `layout`'s socket. `named_token` overrides `layout`'s
    token.
    """

    endpoint: str
    layout: Layout
    is_local: bool
    named_token: str | None
    identity: Identity
    _calls: list[LocalCall] = field(default_factory=list, compare=False)

    @property
    def token(self) -> str:
        """The token to present. Read on each access, because the daemon creates the file on its first start."""
        return self.layout.token() if self.named_token is None else self.named_token

    def require(self) -> None:
        """Raise `UnavailableError` if the address is local and no daemon serves the data folder.

        After this call, a running local daemon does not stop when idle until `release` is called.
        """
        if not self.is_local:
            return
        if not self._calls and (call := self.layout.call()) is not None:
            self._calls.append(call)
        if not self._calls or not self.layout.daemon_runs():
            self.release()  # before the first start, there is no lock to hold
            raise UnavailableError(
                f"no daemon serves {self.layout.data_dir}; start one with: "
                f"memory-agent serve --data-dir {self.layout.data_dir}"
            )

    def release(self) -> None:
        """Allow the daemon to stop when it is idle. Idempotent."""
        self._calls.clear()


class Attempts:
    """The attempts to send one call: their deadline, and whether a failure is followed by another attempt."""

    def __init__(self, address: Address, call: Call) -> None:
        address.require()
        self._address = address
        self._call = call
        self._ends_s = time.monotonic() + call.patience_ms / 1000 + _GRACE_S
        self._losses = 0
        self._lost_s = 0.0

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._ends_s - time.monotonic())

    def pause_s(self, error: UnavailableError) -> float:
        """Return how long to wait before the next attempt. Raises `UnavailableError` and `ConnectionLostError`.

        After a lost connection, a repeatable call is sent again, as long as the daemon may be restarting.
        """
        if isinstance(error, ConnectionLostError):
            self._losses, self._lost_s = self._losses + 1, time.monotonic()
            if self._losses == _MOST_LOSSES or not self._call.is_repeatable:
                raise self._lost() from error
        if not self._losses:
            self._address.require()
            is_over = self.remaining_s <= _PAUSE_S
        else:
            is_back = not self._address.is_local or self._address.layout.daemon_runs()
            is_over = self.remaining_s <= _PAUSE_S or not (is_back or time.monotonic() < self._lost_s + _RESTART_S)
        if is_over:
            raise self._lost() if self._losses else error
        return _PAUSE_S

    def _lost(self) -> ConnectionLostError:
        key = "" if self._address.identity.curve is None else "; or the daemon does not accept this key"
        return ConnectionLostError(self._address.endpoint, self._call.known_when_lost + key)


def find_daemon(
    data_dir: Path | str | None,
    endpoint: str | None,
    token: str | None,
    key_file: Path | str | None = None,
    cells: Path | str | None = None,
    user_id: str | None = None,
) -> Address:
    """Return the address and key of a daemon: the daemon at `endpoint`, the daemon that serves `data_dir`, or the
    daemon of the user's cell (file `cells`).

    Without a token or key file, $MEMORY_AGENT_KEY_FILE is used, or else $MEMORY_AGENT_TOKEN. Raises `SettingsError`,
    and `InvalidInputError` for a user without a cell.
    """
    if cells is not None:
        from memory_agent.client.cells import read_cells  # imported late: imports publishers

        if (data_dir, endpoint, key_file) != (None, None, None):
            raise InvalidInputError("cells", "names the daemon; omit data_dir, endpoint and key_file")
        cell = read_cells(cells).of(user_id)
        data_dir, endpoint, key_file = cell.data_dir, cell.endpoint, cell.key_file
    layout = Layout(Path(data_dir) if data_dir is not None else default_data_dir())
    if token is None and key_file is None:
        key_file = os.environ.get(KEY_FILE_VARIABLE) or None
        token = None if key_file else os.environ.get(TOKEN_VARIABLE) or None
    identity = Identity() if key_file is None else _identity(Path(key_file).expanduser())
    named = identity.token if token is None and key_file is not None else token
    return Address(endpoint or layout.gateway, layout, endpoint is None, named, identity)


def check_named(user_id: str | None) -> str:
    """Return the user id to send in requests ("" for None). Raises `InvalidInputError` if `user_id` is empty."""
    if user_id == "":
        raise InvalidInputError("user_id", "must not be empty; omit it or name a user")
    return user_id or ""


def _identity(path: Path) -> Identity:
    try:
        return identity_of(read_key_file(path))
    except RelaySettingsError as error:
        raise SettingsError(error.setting, error.reason) from error
