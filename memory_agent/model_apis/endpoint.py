"""The URL and the key of a provider's API. Imports no HTTP client."""

from __future__ import annotations

import ipaddress
import os
import re
from urllib.parse import urlsplit

import msgspec

from memory_agent.errors import ProviderError, SettingsError

_KEY = re.compile(r"\$\{(\w+)\}")


class ModelEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The API of a provider. A call may take `timeout_s` in total, unless the call has a shorter limit.

    `setting` is the API's table in the settings, and `provider` is its name in errors. `key` refers to an environment
    variable, as in `${OPENAI_API_KEY}`, or is empty. The key is sent in the header `key_header`, after `key_scheme`.
    """

    setting: str
    provider: str
    url: str
    key: str = ""
    key_header: str = "Authorization"
    key_scheme: str = "Bearer "
    headers: dict[str, str] = {}
    timeout_s: float = 30.0
    answer_bytes: int = 64 << 20
    usd_per_million_tokens: float = 0.0

    def check(self) -> None:
        """Raise `SettingsError` for an invalid URL, or a URL to which the key would be sent unencrypted."""
        check_url(f"{self.setting}.url", self.url)
        if self.key and not _KEY.fullmatch(self.key):
            raise SettingsError(f"{self.setting}.api_key", "must name an environment variable, as in ${OPENAI_API_KEY}")
        if self.key and is_exposed(self.url):
            reason = "contradicts the api_key, which is only sent encrypted: use https, or remove the key"
            raise SettingsError(f"{self.setting}.url", reason)

    def read_key(self) -> str:
        """Return the key from the environment, or "". Raises `ProviderError`, which names the variable."""
        found = _KEY.fullmatch(self.key)
        if found is None:
            return ""
        key = os.environ.get(found[1], "").strip()
        if not key:
            raise ProviderError(
                self.provider, f"the environment variable {found[1]} ({self.setting}.api_key) is not set"
            )
        if not key.isascii() or not key.isprintable():
            raise ProviderError(self.provider, f"the environment variable {found[1]} does not contain a valid key")
        return key


def check_url(setting: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:  # an invalid port or IPv6 address
        is_usable = False
    if not is_usable or "@" in parts.netloc or parts.query or parts.fragment:
        raise SettingsError(setting, "must be http(s)://HOST[:PORT][/PATH], without a key in it")


def is_exposed(url: str) -> bool:
    """Return whether a key sent to this URL would leave the machine unencrypted."""
    return urlsplit(url).scheme == "http" and not is_loopback(url)


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine.

    >>> is_loopback("http://127.0.0.1:11434"), is_loopback("https://api.example.com")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
