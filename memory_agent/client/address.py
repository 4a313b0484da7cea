"""Finds a daemon's endpoint and the key to present."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from memory_agent.errors import InvalidInputError, SettingsError, UnavailableError
from memory_agent.layout import KEY_FILE_VARIABLE, TOKEN_VARIABLE, Layout, default_data_dir
from relay import Identity, RelaySettingsError, identity_of, read_key_file

GRACE_S = 0.5
"""Added to the client's timeout, so that the daemon's own report of a missed deadline arrives first."""


@dataclass(frozen=True)
class Address:
    """A daemon's address. `is_local`: whether it is `layout`'s socket file. `named_token` overrides the token of
    `layout`.
    """

    endpoint: str
    layout: Layout
    is_local: bool
    named_token: str | None
    identity: Identity

    @property
    def token(self) -> str:
        """The token to present. Read on each access, because the daemon creates the file on its first start."""
        return self.layout.token() if self.named_token is None else self.named_token

    def require(self) -> None:
        """Raise `UnavailableError` if the address is local and no daemon serves the data folder."""
        if self.is_local and not self.layout.daemon_runs():
            raise UnavailableError(
                f"no daemon serves {self.layout.data_dir}; start one with: "
                f"memory-agent serve --data-dir {self.layout.data_dir}"
            )


def find_daemon(
    data_dir: Path | str | None, endpoint: str | None, token: str | None, key_file: Path | str | None = None
) -> Address:
    """Return the address and key for the daemon at `endpoint`, or for the one that serves `data_dir`.

    Without a token or key file, $MEMORY_AGENT_KEY_FILE is used, then $MEMORY_AGENT_TOKEN, as on the command line.
    Raises `SettingsError` for an unreadable key file.
    """
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
