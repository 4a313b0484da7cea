"""A client's credentials (a token or CURVE keys) and their default locations.

A client that may read the data folder needs no configuration: the token (mode 0600) is beside the socket file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from relay.decoding import described
from relay.errors import RelaySettingsError

TOKEN_FILE = "token"


class CurvePair(NamedTuple):
    """A CURVE key pair; each key is 40 characters of Z85."""

    public: str
    secret: str


class KeyDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of `keys create`. `server` is the daemon's public CURVE key."""

    id: str
    user_id: str | None = None
    token: str = ""
    public: str = ""
    secret: str = ""
    server: str = ""


class Identity(NamedTuple):
    """The credentials to present: the CURVE keys, else the token, else the content of `file`, which is read on first
    use.
    """

    token: str = ""
    curve: CurvePair | None = None
    server: str = ""
    file: Path | None = None
    user_id: str | None = None  # the key's user, if known. Publishers add it to events without a user


def identity_of(document: KeyDocument) -> Identity:
    curve = CurvePair(document.public, document.secret) if document.secret else None
    return Identity(document.token, curve, document.server, user_id=document.user_id)


def read_key_file(path: Path) -> KeyDocument:
    """Read a key file written by `keys create`. Raises `RelaySettingsError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=described(KeyDocument))
    except FileNotFoundError as error:
        raise RelaySettingsError("key_file", f"file not found: {path}") from error
    except OSError as error:
        raise RelaySettingsError("key_file", f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RelaySettingsError("key_file", f"{path} is not a key file") from error


def local_identity(endpoint: str) -> Identity:
    """Return the default identity for an endpoint: for a socket file `DATA/run/…`, the token in `DATA/token`."""
    if not endpoint.startswith("ipc://"):
        return Identity()
    return Identity(file=Path(endpoint.removeprefix("ipc://")).parent.parent / TOKEN_FILE)


class TokenSource:
    """One client's token, which can be reloaded. Not thread-safe."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._token = identity.token.encode()

    @property
    def current(self) -> bytes:
        """The token, read from the identity's file on first use; empty if the file is missing."""
        if not self._token:
            self.reload()
        return self._token

    def reload(self) -> bool:
        """Reread the token; return whether it has changed."""
        former = self._token
        if self.identity.file is not None:
            try:
                self._token = self.identity.file.read_bytes().strip()
            except OSError:
                self._token = b""
        return self._token != former
