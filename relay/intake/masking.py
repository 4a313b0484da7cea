"""Masks obvious secrets in text before it is stored; a GitHub token becomes `[masked:github_token]`. Pure.

Runs in time linear in the length of the text, even on hostile text. Finds a secret only if it is not encoded, and only
by its known format or by a revealing name beside it (`ops/decisions/0005-secret-masking.md`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from relay.config import MaskingSettings
from relay.errors import RelaySettingsError
from relay.event import Event
from relay.intake.personal_numbers import PERSONAL_FORMATS
from relay.intake.secret_patterns import FORMATS, SECRET_FIELDS, SecretFormat, fold_case

COUNTED = "masked_"
OTHER_KIND = "other"
_KINDS = frozenset(one.kind for one in (*FORMATS, *PERSONAL_FORMATS))
_REPLACEMENT = re.compile(rb"\[masked:([a-z][a-z0-9_]{0,39})\]")
_EXTRA_KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PLACEHOLDER = re.compile(
    r"(?i)(?:x{3,}|\*{3,}|\.{3,}|(?:your|my|the|some|new|old|change|example|redacted|masked|dummy)[-_ ]).*+"
)
_CODE = re.compile(
    r"[(){}\[\]<>]|\A\$[A-Za-z_]|%[sd]\Z|\A%\w+%\Z|::|->|\bself\.|\bos\.|\benv\.|process\.|[A-Za-z_]\w*\.[A-Za-z_]\w*\Z"
)
_WORDS_ONLY = re.compile(r"[A-Za-z]++(?:[._/:-]++[A-Za-z]++)*+[._/:-]*+")
_SIMPLE_VALUES = re.compile(r"(?i)(?:null|none|nil|true|false|undefined|required|optional|string|str|int|\d{1,3})\b.*+")
_REFERENCE = re.compile(r"(?:~|\.{1,2})/.*+|(?:vault|kv|op|ssm|arn|secretsmanager|keyring|env|ref|file|gs|s3):.++")
_CODECS = ((msgspec.json.decode, msgspec.json.encode), (msgspec.msgpack.decode, msgspec.msgpack.encode))
_TRAILING = ".,;:!?)]}\\"
_NO_PART = ".,;:)]}\\"
_RARE_SIGNS = "_=/-:.JKPASGxkw"
_FIELD_WORDS = ("password", "passwd", "secret", "token", "_key", "string")
_IN_EVERY_TEXT = ""


Rows = Mapping[int, Sequence[str]]
"""The rows of the format table that may match a text, each with the literals that may occur in the text."""


class Masker:
    """Masks texts, payloads and events, and counts the secrets by kind. Thread-safe.

    In the examples, `word` is a password.
    """

    def __init__(self, settings: MaskingSettings | None = None, counts: Counter[str] | None = None) -> None:
        """Count secrets in `counts` under `masked_` plus the kind. Raises `RelaySettingsError` for a bad pattern."""
        settings = settings or MaskingSettings()
        self._counts: Counter[str] = Counter() if counts is None else counts
        personal = (one for one in PERSONAL_FORMATS if one.kind in settings.personal)
        extra = map(_extra_format, settings.patterns.items())
        self._formats = (*extra, *FORMATS, *personal) if settings.enabled else ()
        self._literals = _Literals(self._formats)
        self._allowed = tuple(_compiled("allow", pattern) for pattern in settings.allow)

    @property
    def counts(self) -> dict[str, int]:
        counted = sorted(self._counts.items())
        return {name.removeprefix(COUNTED): number for name, number in counted if name.startswith(COUNTED)}

    def text(self, text: str) -> str:
        """Return `text` with its secrets masked. Idempotent.

        >>> masker.text(f"psql postgres://ann:{word}@db/app")
        'psql postgres://ann:[masked:url_password]@db/app'
        >>> masker.counts
        {'url_password': 1}
        """
        return self._text(text, self._literals.rows(text))

    def data(self, data: bytes) -> bytes:
        """Mask bytes: JSON and MessagePack are masked like `value`, and other bytes like `text`, even if they are not
        UTF-8.

        >>> masker.data(b'{"password":"%s"}' % word.encode())
        b'{"password":"[masked:password]"}'
        """
        if not self._formats:
            return data
        for decode, encode in _CODECS:
            try:
                value = decode(data)
                masked = self.value(value)
                return data if masked == value else encode(masked)
            except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, TypeError):
                continue
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def value(self, value: Any) -> Any:
        """Return a JSON value with every string masked, including field names, at any depth.

        The value of a field with a name like `password` is always masked.

        >>> masker.value({"user": "ann", "password": word})
        {'user': 'ann', 'password': '[masked:password]'}
        """
        return self._value(value, self._literals.rows_within(value)) if self._formats else value

    def event(self, event: Event) -> Event:
        """Return the event with its payload and unknown fields masked. Keeps the ids, so that repeated events are
        recognised.

        >>> event = msgspec.structs.replace(events[0], payload={"password": word})
        >>> masker.event(event).payload
        {'password': '[masked:password]'}
        """
        if not self._formats:
            return event
        rows = self._literals.rows_within((event.payload, event.extra))
        payload, extra = self._value(event.payload, rows), self._value(event.extra, rows)
        if payload == event.payload and extra == event.extra:
            return event
        return msgspec.structs.replace(event, payload=payload, extra=extra)

    def _text(self, text: str, rows: Rows) -> str:
        """Apply the rows in order. After a replacement, the remaining rows are applied to the new text."""
        for row, literals in rows.items():
            one = self._formats[row]
            if not one.is_in(text, literals):
                continue
            masked = one.pattern.sub(partial(self._masked, one), text)
            if masked != text:
                rows = self._literals.rows(masked)
                return self._text(masked, {later: found for later, found in rows.items() if later > row})
        return text

    def _value(self, value: Any, rows: Rows) -> Any:
        if isinstance(value, str):
            return self._text(value, rows)
        if isinstance(value, Mapping):
            return self._fields(value, rows)
        if isinstance(value, list | tuple):
            return [self._value(one, rows) for one in value]
        return value

    def _fields(self, fields: Mapping[Any, Any], rows: Rows) -> dict[Any, Any]:
        masked: dict[Any, Any] = {}
        numbers: dict[Any, int] = {}
        for name, value in fields.items():
            unique = shown = self._text(name, rows) if isinstance(name, str) else name
            while unique in masked:  # in linear time, numbers the fields whose masked names are equal
                numbers[shown] = numbers.get(shown, 1) + 1
                unique = f"{shown}#{numbers[shown]}"
            masked[unique] = self._hidden(value) if _is_secret_field(name) else self._value(value, rows)
        return masked

    def _hidden(self, value: Any) -> Any:
        """Mask the value of a secret field. Empty, boolean and already masked values are left unchanged, because they
        reveal nothing.
        """
        if isinstance(value, Mapping):
            return {name: self._hidden(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(one) for one in value]
        if value is None or isinstance(value, bool) or value == "":
            return value
        text = str(value)
        if _is_masked(text) or self._is_allowed(text):
            return value
        found = self.text(text)
        return found if _is_masked(found) else self._replacement("password")

    def _masked(self, one: SecretFormat, match: re.Match[str]) -> str:
        """Return the replacement for a match, or the match itself if it contains no secret."""
        whole = match.group()
        start, end = _secret_span(match)
        secret = match.string[start:end]
        if not secret or self._is_allowed(secret) or not (one.strict or looks_secret(one.kind, match, secret)):
            return whole
        if one.check is not None and not one.check(secret):
            return whole
        offset = match.start()
        return f"{whole[: start - offset]}{self._replacement(one.kind)}{whole[end - offset :]}"

    def _replacement(self, kind: str) -> str:
        self._counts[f"{COUNTED}{kind}"] += 1
        return f"[masked:{kind}]"

    def _is_allowed(self, secret: str) -> bool:
        return any(pattern.fullmatch(secret) for pattern in self._allowed)


def masked_kinds(*values: object) -> Counter[str]:
    """Count the masked secrets in JSON values by kind. Kinds that are not in the table are counted as `other`.

    >>> masked_kinds({"text": "psql postgres://ann:[masked:url_password]@db/app"})
    Counter({'url_password': 1})
    """
    kinds: Counter[str] = Counter()
    for value in values:
        encoded = msgspec.json.encode(value)
        if b"[masked:" in encoded:
            found = [kind.decode() for kind in _REPLACEMENT.findall(encoded)]
            kinds.update(kind if kind in _KINDS else OTHER_KIND for kind in found)
    return kinds


def looks_secret(kind: str, match: re.Match[str], secret: str) -> bool:
    """Whether a match of a non-`strict` pattern is a secret rather than a placeholder, a name or code."""
    if _is_masked(secret) or _PLACEHOLDER.fullmatch(secret) or _REFERENCE.fullmatch(secret) or len(set(secret)) < 3:
        return False
    groups = match.groupdict()
    if kind == "url_password":
        return not _CODE.search(secret) and "[masked:" not in secret
    if kind == "password" and groups["quote"] and " " in secret:
        return "phrase" in groups["name"].lower()
    if " " in secret or _SIMPLE_VALUES.fullmatch(secret):
        return False
    if kind == "authorization":
        return len(secret) >= 16 and _is_mixed(secret)
    if groups["quote"] and kind == "password":
        names_a_field = any(word in secret.lower() for word in _FIELD_WORDS)
        return _is_mixed(secret) or not (_CODE.search(secret) or names_a_field)
    if _WORDS_ONLY.fullmatch(secret):
        return groups["name"].isupper() and "=" in match.group() and secret.islower() and len(secret) >= 6
    if kind == "password":
        return len(secret) >= 5 and not _CODE.search(secret) and _is_mixed(secret)
    return len(secret) >= 12 and not _CODE.search(secret) and _is_mixed(secret)


def _is_mixed(secret: str) -> bool:
    """Whether letters are mixed with digits, or with punctuation that names and paths do not contain."""
    has_letter = any(map(str.isalpha, secret))
    return has_letter and (any(map(str.isdigit, secret)) or any(sign in secret for sign in "!#&*+=@^~?"))


def _is_masked(text: str) -> bool:
    return text.startswith("[masked:")


def _is_secret_field(name: object) -> bool:
    return isinstance(name, str) and name.replace("_", "").replace("-", "").replace(" ", "").lower() in SECRET_FIELDS


def _secret_span(match: re.Match[str]) -> tuple[int, int]:
    """Return the span of the secret, excluding any punctuation after an unquoted secret."""
    groups = match.re.groupindex
    for name in ("secret", "quoted"):
        if name in groups and match[name] is not None:
            return match.span(name)
    if "bare" not in groups:
        return match.span()
    start, end = match.span("bare")
    is_assigned = match.string[start - 1] == "="  # here, unlike in prose, punctuation may be part of the password
    return start, start + len(match.string[start:end].rstrip(_NO_PART if is_assigned else _TRAILING))


class _Literals:
    """Finds the rows whose literals occur in a text. Searches for one rare character of each literal first."""

    def __init__(self, formats: Sequence[SecretFormat]) -> None:
        self._exact: dict[str, dict[str, list[int]]] = {}
        self._any_case: dict[str, dict[str, list[int]]] = {}
        self._every: Rows = {row: one.literals for row, one in enumerate(formats)}
        for row, one in enumerate(formats):
            by_sign = self._any_case if one.ignores_case else self._exact
            for literal in one.literals:
                sign = next((sign for sign in _RARE_SIGNS if sign in literal), literal[:1])
                by_sign.setdefault(sign, {}).setdefault(literal, []).append(row)

    def rows(self, text: str) -> Rows:
        """Return, in order, the rows whose literals occur in `text`, each with the literals found."""
        found: dict[int, list[str]] = {}
        for searched, by_sign in ((text, self._exact), (fold_case(text), self._any_case)):
            for sign, rows_of in by_sign.items():
                if sign in searched:
                    for literal in rows_of:
                        if literal in searched:
                            for row in rows_of[literal]:
                                found.setdefault(row, []).append(literal)
        return dict(sorted(found.items()))

    def rows_within(self, value: Any) -> Rows:
        """Return the rows whose literals occur in a nested value, or all rows if it cannot be encoded as JSON."""
        try:
            written = msgspec.json.encode(value)  # keeps literals unchanged: they contain no quotes or backslashes
        except (TypeError, ValueError, OverflowError, RecursionError):
            return self._every
        return self.rows(written.decode())


def _extra_format(item: tuple[str, str]) -> SecretFormat:
    kind, pattern = item
    if not _EXTRA_KIND.fullmatch(kind):
        raise RelaySettingsError("masking.patterns", f"{kind!r} is not a valid name (a-z, 0-9 and _)")
    _compiled(f"patterns.{kind}", pattern)  # checks it
    return SecretFormat(kind, (_IN_EVERY_TEXT,), pattern, at_literal=False)


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise RelaySettingsError(f"masking.{name}", f"is not a valid pattern: {error}") from error
    if compiled.match("") is not None:
        raise RelaySettingsError(f"masking.{name}", "must not match empty text")
    return compiled
