"""Mutates valid inputs into nearly valid inputs, which pass the first checks.

In a MessagePack or JSON sample, one value is replaced by an unusual value (a lone surrogate, 2^64 - 1, NaN, a length of
4 GB, 3,000 levels). Other samples, and sometimes MessagePack and JSON samples, have flipped bits or a repeated piece,
or are truncated or spliced with another sample. The seed determines every mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec

_DEEP = 3_000
MSGPACK_ODDITIES = (
    b"\xc0",  # null
    b"\xc3",
    b"\x00",
    b"\xff",  # -1
    b"\xcf" + b"\xff" * 8,  # 2^64 - 1
    b"\xcf\x80" + b"\0" * 7,  # 2^63
    b"\xcf\x7f" + b"\xff" * 7,  # 2^63 - 1
    b"\xd3\x80" + b"\0" * 7,  # -2^63
    b"\xcb\x7f\xf8" + b"\0" * 6,  # NaN
    b"\xcb\x7f\xf0" + b"\0" * 6,  # infinity
    b"\xcb\xff\xef" + b"\xff" * 6,  # the smallest number
    b"\xa0",
    b"\xa3\xed\xa0\x80",  # a lone surrogate
    b"\xa1\xff",  # not UTF-8
    b"\xa1\x00",
    b"\xa6system",
    b"\xb5../../../etc/password",
    b"\xb40001-01-01T00:00:00Z",
    b"\xb99999-12-31T23:59:59-23:59",
    b"\xda\x01\x2c" + b"a" * 300,
    b"\xda\x10\x00" + "é".encode() * 2_048,
    b"\xc4\x00",
    b"\xc4\x03\xff\x00\x80",
    b"\x90",
    b"\x80",
    b"\x92\x01\xa1a",
    b"\x81\x01\x01",  # a key that is not text
    b"\x81\xa1a\xc0",
    b"\xd6\xff\0\0\0\0",  # a time
    b"\xc7\x0c\xff" + b"\0" * 4 + b"\x7f" + b"\xff" * 7,  # a time outside the calendar
    b"\xd4\x05\x00",  # an unknown extension
    b"\xc1",  # never used
    b"\xdb\xff\xff\xff\xff",  # 4 GB of text
    b"\xc6\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x91" * _DEEP + b"\xc0",
    b"\x81\xa1a" * _DEEP + b"\xc0",
)
JSON_ODDITIES = (
    b"null",
    b"true",
    b"0",
    b"-1",
    b"18446744073709551615",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"1" + b"0" * 400,
    b"1e999",
    b"-1e308",
    b"NaN",
    b"-0.0",
    b'""',
    b'"\\ud800"',
    b'"\xed\xa0\x80"',
    b'"\xff"',
    b'"\\u0000"',
    b'"system"',
    b'"../../../etc/password"',
    b'"0001-01-01T00:00:00+23:59"',
    b'"9999-12-31T23:59:59-23:59"',
    b'"' + b"a" * 300 + b'"',
    b'"' + "é".encode() * 2_048 + b'"',
    b"[]",
    b"{}",
    b'[1,"a"]',
    b'{"a":null}',
    b"[" * _DEEP + b"]" * _DEEP,
    b'{"a":' * _DEEP + b"1" + b"}" * _DEEP,
    b"[" * _DEEP,
    b"/*",
)
_ODD_BYTES = (b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"\xed\xa0\x80", b"\x80" * 8)

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]
Path = tuple[Any, ...]
_FORMS: dict[str, tuple[Decode, Encode, Sequence[bytes]]] = {
    "msgpack": (msgspec.msgpack.decode, msgspec.msgpack.encode, MSGPACK_ODDITIES),
    "json": (msgspec.json.decode, msgspec.json.encode, JSON_ODDITIES),
}


def mutate(samples: Sequence[bytes], form: str, seed: int) -> bytes:
    """Return one of the samples, changed in up to four places. `form` is `msgpack`, `json` or `bytes`."""
    random = Random(seed)
    data = random.choice(samples)
    if form in _FORMS and random.random() < 0.7:
        changed = _with_oddity(data, form, random)
        if random.random() < 0.8:
            return changed
        data = changed
    for _ in range(random.randint(1, 4)):
        data = random.choice(_EDITS)(data, samples, random)
    return data


def _with_oddity(data: bytes, form: str, random: Random) -> bytes:
    """Return the sample with one or two values replaced; unchanged if it cannot be parsed."""
    decode, encode, oddities = _FORMS[form]
    try:
        tree = decode(data)
        for _ in range(random.randint(1, 2)):
            path = random.choice(list(_paths(tree)))
            tree = _replaced(tree, path, msgspec.Raw(random.choice(oddities)))
        return encode(tree)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return data


def _paths(tree: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    members = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, member in members:
        yield from _paths(member, (*path, name))


def _replaced(tree: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(tree, dict):
        return {**tree, first: _replaced(tree[first], rest, value)}
    return [_replaced(member, rest, value) if place == first else member for place, member in enumerate(tree)]


def _flip(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    if not data:
        return b"\0"
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def _cut(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    start, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return data[:start] if random.random() < 0.5 else data[:start] + data[end:]


def _insert(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    place = random.randint(0, len(data))
    return data[:place] + random.choice(_ODD_BYTES) + data[place:]


def _overwrite(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    place, odd = random.randint(0, len(data)), random.choice(_ODD_BYTES)
    return data[:place] + odd + data[place + len(odd) :]


def _splice(data: bytes, samples: Sequence[bytes], random: Random) -> bytes:
    other = random.choice(samples)
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


def _repeat(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    start = random.randint(0, len(data))
    piece = data[start : start + random.randint(1, 40)]
    return data[:start] + piece * random.choice((2, 10, 200)) + data[start:]


_EDITS = (_flip, _flip, _cut, _insert, _overwrite, _splice, _repeat)
