"""The formats of phone numbers, payment card numbers and bank account numbers (IBAN). Pure.

Cards are recognised by their check digit (Luhn, ISO/IEC 7812), and IBANs by their check digits (modulo 97, ISO 13616)
and the length for their country. Phone numbers have no check digit. They are recognised by a country code, a typical
grouping, or a preceding word such as "phone" (`ops/decisions/0005-secret-masking.md`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, cast

from relay.config import PersonalKind
from relay.intake.secret_patterns import SecretFormat

_IBAN_LENGTHS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
    "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
    "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
    "YE30"
)
_CODE = (
    r"(?:1|7|2(?:[07]|[1-689]\d)|3(?:[0-469]|[578]\d)|4(?:[013-9]|2\d)|5(?:[1-8]|[09]\d)|6(?:[0-6]|[789]\d)"
    r"|8(?:[1246]|[03578]\d)|9(?:[0-58]|[679]\d))"
)
"""The country calling codes of ITU-T E.164."""
_DIGITS = tuple("0123456789")
_SEPARATED = r"(?:[ ().\-/\u00a0\u202f\u2011]{0,3}+\d)"
_BEFORE, _AFTER = r"(?<![\w+./-])(?<!\d[,:])", r"(?![\w-]|[.,:]\d)"
_ALONE_BEFORE, _ALONE_AFTER = rf"{_BEFORE}(?<!\d )", rf"{_AFTER}(?! \d)"
_INTERNATIONAL = rf"(?:1[ .(-]{{0,2}}+[2-9]\d{_SEPARATED}{{8}}|(?!1){_CODE}{_SEPARATED}{{6,13}}+)"
"""The number of digits after + or 00, which is always 11 in North America."""
_WORDS = (
    *("phone", "telephone", "tel", "telefon", "telefone", "telefono", "teléfono", "téléphone", "telefonnummer"),
    *("mobile", "mobil", "móvil", "celular", "cellulare", "cell", "handy", "fax", "whatsapp", "signal", "sms"),
    "rufnummer",
)
_DATE = re.compile(r"(?:19|20)\d\d[-/. ](?:0?[1-9]|1[0-2])[-/. ]\d")


class PersonalNumber(NamedTuple):
    start: int
    kind: PersonalKind
    text: str


def personal_numbers(text: str) -> Iterator[PersonalNumber]:
    """Yield the phone numbers, card numbers and IBANs in a text, in the order of the formats. None overlap.

    >>> [(one.kind, one.text) for one in personal_numbers("+44 20 7946 0958, card 4111 1111 1111 1111")]
    [('card', '4111 1111 1111 1111'), ('phone', '+44 20 7946 0958')]
    """
    for one in PERSONAL_FORMATS:
        found: list[PersonalNumber] = []
        text = one.pattern.sub(partial(_taken, one, found), text)
        yield from found


def _taken(one: SecretFormat, found: list[PersonalNumber], match: re.Match[str]) -> str:
    """Add the number in a match to `found`, and return the match with underscores in place of the number, so that later
    formats do not find it.
    """
    start, end = match.span("secret" if "secret" in one.pattern.groupindex else 0)
    number, whole, offset = match.string[start:end], match.group(), match.start()
    if one.check is not None and not one.check(number):
        return whole
    found.append(PersonalNumber(start, cast(PersonalKind, one.kind), number))
    return f"{whole[: start - offset]}{'_' * len(number)}{whole[end - offset :]}"


def _has_luhn_digit(number: str) -> bool:
    digits = [int(one) for one in reversed(number) if one.isdigit()]
    doubled = (sum(divmod(2 * one, 10)) for one in digits[1::2])
    return len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _has_iban_digits(number: str) -> bool:
    plain = re.sub(r"[ -]", "", number)
    return int("".join(str(int(one, 36)) for one in plain[4:] + plain[:4])) % 97 == 1


def _may_be_called(number: str) -> bool:
    digits = [one for one in number if one.isdigit()]
    return len(set(digits)) > 2 and not _DATE.match(number.lstrip("+")) and number[-5:] not in ("00000", "00.00")


def _ibans() -> str:
    countries: defaultdict[int, list[str]] = defaultdict(list)
    for one in _IBAN_LENGTHS.split():
        countries[int(one[2:])].append(one[:2])
    each = (f"(?:{'|'.join(names)})[0-9]{{2}}(?:[ -]?[A-Z0-9]){{{most - 4}}}" for most, names in countries.items())
    return rf"(?<![\w-])(?=[A-Z]{{2}}[0-9]{{2}})(?:{'|'.join(each)})(?![\w-])"


_CARD = (
    r"(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6(?:011|4[4-9]\d|[25]\d{2})|35[2-8]\d)(?P<gap>[ -]?)\d{4}(?P=gap)\d{4}"
    r"(?P=gap)\d{4}"
    r"|3[47]\d{2}(?P<gap15>[ -]?)\d{6}(?P=gap15)\d{5}|3(?:0[0-5]|[689]\d)\d(?P<gap14>[ -]?)\d{6}(?P=gap14)\d{4}"
)


def _phone(pattern: str, literals: tuple[str, ...], *, at_literal: bool = True) -> SecretFormat:
    return SecretFormat("phone", literals, pattern, at_literal=at_literal, check=_may_be_called)


PERSONAL_FORMATS: tuple[SecretFormat, ...] = (
    SecretFormat("iban", _DIGITS, _ibans(), at_literal=False, check=_has_iban_digits),
    SecretFormat("card", tuple("23456"), rf"{_BEFORE}(?:{_CARD}){_AFTER}", check=_has_luhn_digit),
    _phone(rf"(?:(?<![\w+])|(?<=\d{{4}}))\+{_INTERNATIONAL}{_AFTER}", ("+",)),  # the end of another number
    _phone(rf"{_ALONE_BEFORE}00[ -]?(?=\d{{1,3}}[ \-/(]){_INTERNATIONAL}{_AFTER}", ("00",)),
    _phone(
        rf"{_BEFORE}(?:1[ .-])?(?:\([2-9]\d\d\) ?|(?![234]00)[2-9]\d\d[.-])[2-9]\d\d[ .-]\d{{4}}{_AFTER}",
        _DIGITS,
        at_literal=False,
    ),
    _phone(rf"{_BEFORE}\((?:0[1-9]\d{{0,3}}|[1-9]\d{{1,4}})\)[ -]?\d{{3,5}}[ -]?\d{{3,5}}{_AFTER}", ("(",)),
    _phone(rf"{_ALONE_BEFORE}0[1-9](?:(?:[ .-]\d\d){{4}}|\d{{0,3}}[ -]\d{{3,4}}[ -]\d{{3,4}}){_ALONE_AFTER}", ("0",)),
    _phone(
        rf"(?i)(?<![a-z])(?:{'|'.join(_WORDS)})(?: ?(?:number|num|no|nr|n°|#)\b)?[.:=#\"']{{0,3}}+(?: is| was| at| on)?"
        rf"[ \"']{{0,3}}+(?P<secret>\(?\d{_SEPARATED}{{6,14}}+){_AFTER}",
        _WORDS,
    ),
)
