"""The number of tokens of a text: by the model while there is time, else an upper bound.

The bound is for WordPiece with the uncased vocabulary of BERT, the bundled model's. It holds for every text, by the
content of the vocabulary: frequent words are one piece, and a piece has at least two letters wherever that pair is in
it. English comes out at 1.6 to 2 times its tokens. Rejected: three bytes a token, too few for symbols and Chinese
(30,678 tokens for a bound of 20,000); one token a character, three times too many in English.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from memory_agent.errors import EmbedderUnavailableError, ModelError

if TYPE_CHECKING:
    from memory_agent.embedders import Embedder, LazyEmbedder
    from memory_agent.recall.query import Deadline

_NO_PAIR = {
    "b": "dgjkpqvwxz", "c": "fgjnqvwx", "d": "gjknqvwxz", "e": "q", "f": "dghjnqvwxz", "g": "djkqvwxz",
    "h": "bfjkqvwxz", "i": "w", "j": "bcdfghjlpqrtvwxyz", "k": "bcdfgjlnpqvwxz", "l": "ghjqvwx", "m": "fhjknqrvwz",
    "n": "fjmqvw", "o": "q", "p": "bjknqvxz", "q": "bcdefghjklmnopqrstvwxyz", "r": "jqvwx", "s": "jnqvx",
    "t": "bdgjknqwx", "u": "quv", "v": "fghjklmpqtvwxz", "w": "bfhjmpqvwxz", "x": "bcdefghjklmnopqrsuvwz",
    "y": "bcfghjqvwyz", "z": "bcfgjklmnpqrstvwx",
}  # fmt: skip
"""For each letter, those that begin a new piece after it: `##xy` is not in the vocabulary. Tested against it."""

_WHOLE = frozenset(
    """
    the of and to in is it was for on that with as be at by this from are were not or an have has had but they you
    we he she his her its their our your my me him them us who what which when where why how all any some no one two
    three first last new other more most only also then than so if into out up down over after before again about
    because would could should will can may did do does done been being there here now just each every both same
    such very much many few own under between through during while until still even back off too yes get got go
    going make made take see seen say said know want need use used find found look think like time times day days
    week weeks month months year years hour hours minute minutes ago way work works working worked run running ran
    start started stop stopped end ended fix fixed change changed add added set open close write read test tests
    build release version file files name names list line lines code data error errors failed fails completed
    approved later built past present records sessions input user worker result plan strategy finding pattern
    episode title session system service server client database table key value number text word words state check
    health null true false none old right left good bad long short small large high low next always never people
    things thing part place point world life home city school house man men woman women children great little water
    well come came went give given tell told ask asked help show try call called feel put keep let begin seem turn
    move live believe hold bring happen must provide sit stand lose pay meet include continue learn lead understand
    watch follow create speak allow spend grow walk win offer remember love consider appear buy wait serve die send
    expect stay fall cut reach kill remain resemble instructions sources source project team issue problem question
    answer message request response memory process network model page support case group company program government
    """.split()  # noqa: SIM905 - a word list is read as text
)
"""Frequent words that are one piece of the vocabulary."""

_EDGE = r"[^ \n\t!-/:-@\[-`{-~]"
_WORD = re.compile(f"(?<!{_EDGE})[a-z]+(?!{_EDGE})")
_LETTERS = re.compile("[a-z]+")
_BREAK = re.compile("(?<=[a-z])(?:" + "|".join(f"{letter}(?=[{then}])" for letter, then in _NO_PAIR.items()) + ")")
_REST_SHARE = 0.1  # of the deadline, reserved for the steps after counting
_MOST_REST_S = 0.02


def estimate_tokens(text: str) -> int:
    """Return an upper bound of the tokens of `text`. Bounds of lines add up to at least that of the text.

    A frequent word counts one, and so does each decomposed character (a Hangul syllable is two or three), except in
    runs of letters: pieces of one letter are at most the first, the last and those before a pair that the vocabulary
    lacks; all others have two letters or more.
    """
    text = _WORD.sub(lambda word: "0" if word[0] in _WHOLE else word[0], unicodedata.normalize("NFD", text).lower())
    runs = _LETTERS.findall(text)
    letters = sum(map(len, runs))
    others = sum(map(len, text.split())) - letters
    twice = letters + 2 * len(runs) + len(_BREAK.findall(text))
    return others + (twice + 1) // 2


class TokenCounter:
    """Counts tokens for one recall: by the model until it is late, estimated from then on, as `deadline` notes."""

    def __init__(self, embedder: LazyEmbedder, deadline: Deadline) -> None:
        self._deadline = deadline
        self._rest_s = min(_REST_SHARE * deadline.limit_s, _MOST_REST_S)
        self._embedder = self._ready(embedder)

    def __call__(self, text: str) -> int:
        """Return the number of tokens of `text`, or an upper bound."""
        counted = None if self._embedder is None else self._count(self._embedder, text)
        return estimate_tokens(text) if counted is None else counted

    def _ready(self, embedder: LazyEmbedder) -> Embedder | None:
        """Return the embedder if it is ready and was not late before."""
        if "embedder_timeout" in self._deadline.degraded:
            return None
        try:
            return embedder.get(0)
        except EmbedderUnavailableError:
            self._deadline.degrade("embedder_timeout")
        except ModelError:
            pass  # without a model nothing is late
        return None

    def _count(self, embedder: Embedder, text: str) -> int | None:
        from memory_agent.embedders import failing_as_model_error  # the command line only estimates

        timeout_s = self._deadline.remaining_s - self._rest_s
        try:
            if timeout_s > 0:
                with failing_as_model_error():
                    return embedder.count_tokens(text, timeout_s)
            self._deadline.degrade("deadline")
        except EmbedderUnavailableError:
            self._deadline.degrade("embedder_timeout")
        except ModelError:
            self._deadline.degrade("no_model")
        self._embedder = None
        return None
