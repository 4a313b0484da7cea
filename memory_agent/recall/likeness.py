"""When two texts say the same, so that one of them is enough. Pure.

The same: equal words, whatever their case and punctuation. Nearly the same: one says all that the other says, in the
same order, and adds at most a few words; both name the same numbers and identifiers and deny alike. A word *replaced*
makes another text: "the deploy succeeded" and "the deploy failed" lie at a cosine of .97, and a planner needs both.
So does who said it to whom, hence the order. The vectors must agree as well (`SAME_COSINE`).

Rejected by measurement (decision 0016): a cosine alone, or a share of common words alone (both fold messages that
differ in one number, or in who failed); min-hashing at ingest, which finds what these rules then refuse.
"""

from __future__ import annotations

import msgspec

from memory_agent.storage.terms import STOP_WORDS, words_of

SAME_COSINE = 0.95
_LEAST_SHARE = 0.75  # of the longer text's telling words
_DENIALS = frozenset({"no", "nor", "not", "never", "none", "without", "cannot", "t"})  # t: don't, isn't


class Gist(msgspec.Struct, frozen=True):
    """What a text says: its telling words in order, what in it is a number or an identifier, how often it denies."""

    telling: tuple[str, ...]
    exact: frozenset[str]
    denials: int


def gist(text: str) -> Gist:
    """Return what `text` says."""
    words = words_of(text)
    return Gist(
        telling=tuple(word for word in words if word not in STOP_WORDS and word not in _DENIALS),
        exact=frozenset(word for word in words if any(map(str.isdigit, word))),
        denials=sum(word in _DENIALS for word in words),
    )


def adds_only_filler(one: Gist, other: Gist) -> bool:
    """Say whether one of the two says all that the other says, and hardly more."""
    short, long = sorted((one.telling, other.telling), key=len)
    if len(short) < _LEAST_SHARE * len(long) or one.exact != other.exact or one.denials != other.denials:
        return False
    rest = iter(long)
    return all(word in rest for word in short)
