"""Browser sessions. Each session holds the token of the key used to sign in.

A browser sends a cookie to every port of this machine, and any account may listen on a port. So a request needs two
secrets: a cookie, which scripts cannot read, and a page key, which only scripts of the page can read. A ticket is valid
for one sign-in only; it keeps the token out of command lines and the browser's history.

The sessions file survives a restart of the daemon. It contains digests of the secrets, and encrypted tokens. Each token
is encrypted with a keystream (SHAKE-256) that is derived from a secret and used once.
"""

from __future__ import annotations

import secrets
import threading
from hashlib import sha256, shake_256
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from relay import described
from relay.disk import add_checksum, verify_checksum, write_private
from relay.log import log

PAGE_KEY = "X-Page-Key"
SESSION_S = 12 * 3600
TICKET_S = 60
MOST_OF_A_KEY = 16
"""The maximum number of sessions per key, and of tickets per key. A further one replaces the oldest."""
_SECRET_BYTES = 32

Kind = Literal["session", "ticket"]

_LASTS_S: dict[Kind, int] = {"session": SESSION_S, "ticket": TICKET_S}


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a sign-in: a ticket, or a key's token."""

    token: Annotated[str, msgspec.Meta(max_length=1024)]


class Ticket(msgspec.Struct, frozen=True):
    """A ticket, which is valid for one sign-in. `user_id` is the key's user, or None for a key for all users."""

    ticket: str
    expires_in_s: int = TICKET_S
    user_id: str | None = None


class SignedIn(msgspec.Struct, frozen=True):
    """What the page may do: the key's user (None: all users) and scopes. `version` is the daemon's version."""

    user_id: str | None
    scopes: tuple[str, ...]
    page_key: str | None
    version: str


class Secrets(NamedTuple):
    """The two secrets of a session."""

    cookie: str
    page_key: str


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An encrypted token and the Unix time at which it expires."""

    kind: Kind
    key_id: str
    token: bytes
    expires_s: float

    def is_valid(self, now_s: float) -> bool:
        left_s = self.expires_s - now_s
        return 0 < left_s <= 2 * _LASTS_S[self.kind]  # more time can be left only if the clock was set back


_Table = dict[str, _Sealed]


class Sessions:
    """The tickets and sessions of one server. `now_s` is Unix time. Thread-safe; only changes do I/O.

    >>> sessions = Sessions(Path("page-sessions"), port=7430, is_tls=False)
    >>> secrets = sessions.begin("laptop", "token", now_s=0)
    >>> sessions.token(secrets, now_s=60)
    'token'
    """

    def __init__(self, path: Path, port: int, is_tls: bool) -> None:
        """Read the sessions stored in `path`. Only sessions that were started at `port` are valid."""
        self._path = path
        self._port = port
        self._table = _read(path)
        self._guard = threading.Lock()
        self.cookie_name = f"memory_agent_{port}"
        self._attributes = "; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if is_tls else "")

    def give_ticket(self, key_id: str, token: str, now_s: float) -> str:
        ticket = secrets.token_urlsafe(_SECRET_BYTES)
        self._add("ticket", key_id, token, self._secret("ticket", ticket), now_s)
        return ticket

    def take_ticket(self, ticket: str, now_s: float) -> str | None:
        """Return the token of a valid ticket, once."""
        secret = self._secret("ticket", ticket)
        with self._guard:
            token = self._open(secret, now_s)
            self._remove(secret)
        return token

    def begin(self, key_id: str, token: str, now_s: float) -> Secrets:
        made = Secrets(secrets.token_urlsafe(_SECRET_BYTES), secrets.token_urlsafe(_SECRET_BYTES))
        self._add("session", key_id, token, self._secret("session", *made), now_s)
        return made

    def token(self, given: Secrets, now_s: float) -> str | None:
        """Return the token of a valid session. Does no I/O."""
        return self._open(self._secret("session", *given), now_s)

    def end(self, given: Secrets) -> None:
        """Idempotent."""
        with self._guard:
            self._remove(self._secret("session", *given))

    def set_cookie(self, cookie: str) -> str:
        """Return the `Set-Cookie` header that stores a session's cookie, or removes it if `cookie` is empty."""
        return f"{self.cookie_name}={cookie}{self._attributes}; Max-Age={SESSION_S if cookie else 0}"

    def _secret(self, kind: Kind, *parts: str) -> bytes:
        return "\n".join((kind, str(self._port), *parts)).encode()

    def _open(self, secret: bytes, now_s: float) -> str | None:
        found = self._table.get(_digest(secret))
        if found is None or not found.is_valid(now_s):
            return None
        return _encrypt(found.token, secret).decode(errors="replace")  # a damaged token is treated as unknown

    def _add(self, kind: Kind, key_id: str, token: str, secret: bytes, now_s: float) -> None:
        sealed = _Sealed(kind, key_id, _encrypt(token.encode(), secret), now_s + _LASTS_S[kind])
        with self._guard:
            valid = {digest: one for digest, one in self._table.items() if one.is_valid(now_s)}
            same = [digest for digest, one in valid.items() if (one.kind, one.key_id) == (kind, key_id)]
            for digest in same[: max(0, len(same) - MOST_OF_A_KEY + 1)]:
                del valid[digest]
            self._store({**valid, _digest(secret): sealed})

    def _remove(self, secret: bytes) -> None:
        digest = _digest(secret)
        if digest in self._table:
            self._store({other: one for other, one in self._table.items() if other != digest})

    def _store(self, table: _Table) -> None:
        """Replace the table and write it to its file. If this fails, the sessions last only until the daemon stops."""
        self._table = table
        try:
            write_private(self._path, add_checksum(msgspec.json.encode(table)))
        except OSError as error:
            log.warning("page.sessions_not_saved", reason=error.strerror or str(error))


def _read(path: Path) -> _Table:
    """Return the stored sessions, or none if the file is missing or damaged; browsers must then sign in again."""
    try:
        return msgspec.json.decode(verify_checksum(path.read_bytes()), type=described(_Table))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        log.warning("page.sessions_unreadable", path=str(path))
        return {}


def _digest(secret: bytes) -> str:
    return sha256(b"digest\n" + secret).hexdigest()


def _encrypt(data: bytes, secret: bytes) -> bytes:
    """Encrypt or decrypt with the keystream of a secret that is used for nothing else."""
    keystream = shake_256(b"keystream\n" + secret).digest(len(data))
    return bytes(one ^ other for one, other in zip(data, keystream, strict=True))
