"""Made-up secrets in sentences. The files contain only patterns, so nothing in the repository looks like a secret."""

from __future__ import annotations

import json
import random
import re
import string
from pathlib import Path
from typing import NamedTuple

_ALPHABETS = {
    "A": string.ascii_uppercase + string.digits,
    "n": string.ascii_letters + string.digits,
    "u": string.ascii_letters + string.digits + "_-",
    "b": string.ascii_letters + string.digits + "+/",
    "h": string.digits + "abcdef",
    "H": string.digits + "ABCDEF",
    "d": string.digits,
    "p": string.ascii_letters + string.digits + "!$#%^*-_",
}


class MadeUp(NamedTuple):
    """A secret, its kind, and a sentence that contains it."""

    kind: str
    text: str
    secret: str


def made_up_secrets(seed: int = 1, file: str = "made_up_secrets.jsonl") -> list[MadeUp]:
    """Return a file's secrets, drawn with `seed`: `<n36>` in the file becomes 36 letters and digits."""
    chance = random.Random(seed)
    rows = map(json.loads, (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines())
    drawn = [
        (row, re.sub(r"<([AnubhHdp])(\d+)>", lambda hole: _draw(chance, *hole.groups()), row["secret"])) for row in rows
    ]
    return [MadeUp(row.get("kind", ""), row["text"].replace("{S}", secret), secret) for row, secret in drawn]


def _draw(chance: random.Random, alphabet: str, count: str) -> str:
    letters = [chance.choice(_ALPHABETS[alphabet]) for _ in range(int(count))]
    if alphabet in "nup" and len(letters) > 2:  # mixes digits and letters, as password generators do
        letters[1] = chance.choice(string.digits)
        letters[-1] = chance.choice(string.ascii_letters)
        letters[0] = chance.choice(string.ascii_letters)
    return "".join(letters)
