"""Checks the HTTP server's address, and the Host and Origin headers of requests.

A web page can make its own host name resolve to 127.0.0.1 (DNS rebinding). The page's requests carry that name in the
Host header, so a request is refused if its Host does not name this machine. Cookie-bearing requests from another site
are refused; another port of this machine counts as another site.
"""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from memory_agent.errors import SettingsError
from memory_agent.settings import HttpSettings

_LISTEN = "daemon.http.listen"
MOST_PORT = 65_535


@dataclass(frozen=True)
class Place:
    host: str
    port: int
    is_loopback: bool
    is_tls: bool

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{port}"


def place_of(settings: HttpSettings) -> Place | None:
    """Return the address to listen on, or None if HTTP is off.

    Raises `SettingsError` for an invalid address, a non-loopback address without a certificate, and a missing file.
    """
    if not settings.listen:
        return None
    host, _, port = settings.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > MOST_PORT:
        raise SettingsError(_LISTEN, f"must be HOST:PORT, such as 127.0.0.1:7430 or [::1]:0, not {settings.listen!r}")
    is_tls = _has_certificate(settings)
    place = Place(host, int(port), is_loopback(host), is_tls)
    if not place.is_loopback and not is_tls:
        raise SettingsError(
            _LISTEN,
            f"{host} is not loopback (127.0.0.1, ::1, localhost), so tokens would be sent unencrypted: "
            "set daemon.http.certificate and daemon.http.private_key",
        )
    return place


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def refuse_names(place: Place, named: tuple[str, ...], host: str, origin: str | None) -> tuple[int, str] | None:
    """Return a status and a reason if Host does not name this machine or Origin names a different site, else None.

    `named` are the host names in the settings. If there are none and TLS is used, the certificate identifies the host.
    """
    own = _name_of(host)
    is_own = is_loopback(own) or own in {name.lower() for name in (place.host, *named)}
    if not is_own and (named or not place.is_tls):
        return 421, f"unknown host {own or '(no name)'}; use 127.0.0.1, or add the name to daemon.http.hosts"
    if origin is not None and origin.partition("://")[2] != host:
        return 403, "requests from other origins are not allowed"
    return None


def is_own_site(fetch_site: str | None) -> bool:
    """Whether a request with a cookie comes from this server's own page, according to its Sec-Fetch-Site header.

    Old browsers and other programs send no such header; `none` is sent if the user entered the address.
    """
    return fetch_site in (None, "same-origin", "none")


def _name_of(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).strip("[]").lower()


def _has_certificate(settings: HttpSettings) -> bool:
    files = {"certificate": settings.certificate, "private_key": settings.private_key}
    for name, file in files.items():
        if file and not Path(file).expanduser().is_file():
            raise SettingsError(f"daemon.http.{name}", f"{file} is not a file")
    if any(files.values()) and not all(files.values()):
        missing = next(name for name, file in files.items() if not file)
        raise SettingsError(f"daemon.http.{missing}", "is missing; TLS requires a certificate and its private key")
    return bool(settings.certificate)
