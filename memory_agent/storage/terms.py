"""Split texts and queries into words, find stems and stop words, and compute fingerprints of texts.

Words are runs of letters and digits, folded to lower case without diacritics. Query syntax and phrases are ignored: a
query is a whole message. Scripts without spaces between words, such as Chinese, Japanese and Thai, are split into
overlapping pairs of letters; otherwise a whole clause would be one word. Vowel signs belong to their letter; otherwise
a Hindi word would become as many words as it has consonants.

Words and stems of other texts equal those of FTS5 (`porter unicode61 remove_diacritics 2`), except for characters newer
than its tables and for 18 of the 20,766 words of the evaluation's texts: Snowball's Porter stemmer keeps "logi", "bli"
and the doubled letter of "trekked".

Stop words say nothing about the topic of a sentence; negations are not stop words. Stop words of Russian, Hindi and
Arabic are recognised by their letters. A text in Latin letters counts as another language if at least two of its stop
words belong only to that language, and at least twice as many as belong only to English: English texts contain titles
and names such as "La Vie en rose".
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import dropwhile

import Stemmer
import xxhash

_ENGLISH = """
    a about after all also am an and any are as at be because been before being but by can could did do does
    doing for from had has have having he her here him his how i if in into is it its just me my no nor not now
    of off on once or our out over own she should so some such than that the their them then there these they
    this those to too us was we were what when where which while who whom why will with would you your
"""
_OF_OWN_SCRIPTS = """
    и в во на с со к ко у о об от до из за по при для как что кто где когда куда откуда почему зачем какой какая какое
    какие каков какова каком какую сколько это этот эта эти тот та те я ты он она оно мы вы они мой моя мое моё мои мою
    моего моей твой наш наша наше ваш его ее её ей ему их им мне меня нас вас свой был была было были есть быть бы же ли
    а но или так уже все

    का की के को में से पर ने है हैं था थी थे हो और या यह वह ये वे मैं हम तुम आप मेरा मेरी मेरे हमारा हमारी हमारे
    क्या कौन कहाँ कब क्यों कैसे कितना कितनी कितने किस किसने किसे कि जो तो भी ही एक सा सी

    في من إلى على عن مع هذا هذه ذلك التي الذي هو هي هم أنا نحن أنت ما ماذا متى أين كيف لماذا كم أي بأي هل كان كانت
    يكون أو ثم قد لأن أن إن
"""
_LATIN = {
    "de": """
        der die das den dem des ein eine einen einem einer eines und oder ist sind war waren wird werden wurde
        hat habe haben hatte ich du er sie es wir ihr mich dich uns mein meine meinen meiner dein deine sein
        seine ihre unser unsere was wie wo wer wen wem wann warum wieso welche welcher welches welchen welchem
        in im an am auf aus bei mit nach von vom zu zum zur fur uber unter um so auch noch schon dass weil wenn
        als man sich viel
    """,
    "es": """
        el la los las un una unos unas de del al a en con por para que cual cuales quien quienes como cuando
        donde cuanto cuanta cuantos es son era fue esta estan ser estar hay se lo le les me te nos mi mis tu tus
        su sus y o este esto ese esa eso ya muy mas si ha han tiene
    """,
    "fr": """
        le la les un une des du de l d au aux en dans sur sous avec pour par que qui quoi quel quelle quels
        quelles comment quand ou pourquoi combien est sont etait a ont ai avons il elle ils elles je tu nous
        vous on me te se mon ma mes ton ta tes son sa ses notre nos votre ce cet cette ces c s j m qu et y plus
    """,
    "it": """
        il lo la i gli le un uno una di del della dei delle dello a al alla da dal dalla in nel nella con su per
        che chi cosa quale quali come quando dove perche quanto e sono era ha ho hanno abbiamo si mi ti ci vi
        mio mia miei tuo tua suo sua nostro questo questa quello
    """,
    "nl": """
        de het een van en is zijn was waren wordt werden in op aan met voor bij naar uit om te dat die dit deze
        wie wat waar wanneer waarom hoe welke ik jij je hij zij we wij ze mijn jouw ons onze heeft heb hebben
        had er ook nog
    """,
    "pt": """
        o a os as um uma de do da dos das em na nos nas com por para que qual quais quem como quando onde quanto
        porque e sao foi era esta estao ser ha tem se me te meu minha seu sua nosso isso este ao
    """,
}

STOP_WORDS = frozenset(_ENGLISH.split())
_ALWAYS = STOP_WORDS.union(_OF_OWN_SCRIPTS.split())
_LANGUAGES = tuple(frozenset(words.split()) for words in _LATIN.values())
_LEAST_FOREIGN = 2


def stop_words_of(words: Iterable[str]) -> frozenset[str]:
    """Return the folded stop words for the language of a text with these folded `words`."""
    return _ALWAYS | foreign_stop_words(words)


def foreign_stop_words(words: Iterable[str]) -> frozenset[str]:
    """Return the stop words for the language of folded `words`; none for English and non-Latin scripts."""
    said = set(words)
    language = max(_LANGUAGES, key=lambda stops: len(stops & said))
    own, english = len(language & said - STOP_WORDS), len(STOP_WORDS & said - language)
    return language if own >= max(_LEAST_FOREIGN, 2 * english) else frozenset()


TERMS_VERSION = f"2, PyStemmer {version('PyStemmer')}, Unicode {unicodedata.unidata_version}"
"""The version of `text_words` and `stems`; other versions may return different words."""

_MARKS = (
    "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u0309\u030a\u030b\u030c\u030f"
    "\u0311\u031b\u0323\u0324\u0325\u0326\u0327\u0328\u032d\u032e\u0330\u0331"
)
"""Diacritics: part of the preceding word, and dropped by folding."""
_POINTS = "".join(
    char
    for char in map(chr, (*range(0x591, 0x5C8), *range(0x610, 0x61B), *range(0x64B, 0x671), *range(0x6D6, 0x6EE)))
    if unicodedata.category(char) == "Mn"
)
"""Vowel points of Hebrew and Arabic; rarely written, so treated as diacritics."""
_VOWELS = "".join(
    char
    for char in map(chr, (*range(0x900, 0x10A0), *range(0x1780, 0x1800), 0x3099, 0x309A))
    if unicodedata.category(char) in ("Mn", "Mc")
)
"""Signs for vowels and tones, from India to Japan: part of the preceding letter, and kept by folding."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Han, the kana, and Hangul (whose words include their particles)."""

_WORD = re.compile(r"[^\W_]+")
_PIECES = re.compile(rf"({_WORD.pattern})")
_MARKED_PIECES = re.compile(rf"([^\W_](?:[^\W_]+|[{_MARKS}]+)*)")
_SPECIAL = re.compile(rf"[{_POINTS}{_VOWELS}{_UNSPACED}]")
_SIGNS = f"[{_MARKS}{_POINTS}{_VOWELS}]"
_LETTER = re.compile(rf"(?=[^\W_])[{_UNSPACED}]{_SIGNS}*")
_RUNS = re.compile(rf"((?:{_LETTER.pattern})+)|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]+|{_SIGNS}+)*")
_SHORTEST_INFLECTED = 3  # characters; shorter words, and words longer than `LONGEST_WORD`, are not stemmed
_FOLDED_CHARS = 1 << 15  # maximum number of characters in the table; all scripts in use have fewer
LONGEST_WORD = 64  # characters; longer runs are usually digests or base64
_MOST_WORDS = 64  # distinct words; each adds to the search time
_READ_CHARS = 100_000
_LANGUAGE_CHARS = 2_000

_QUESTION_MARKS = frozenset("?？؟")
_PUNCTUATION = ".,;:!\"'“”‘’…`"
_ARTICLES = frozenset({"an", "the"})  # without "a", which is also a name, as in "plan A"
_COURTESIES = frozenset("alright also and hello hey hi ok okay please so sure thanks well".split())  # noqa: SIM905
"""Words that mean nothing at the start or end of a text, but matter inside it ("not sure", "works so well")."""


_DROPPED = frozenset(_MARKS + _POINTS)


class _Folds(dict[int, str]):
    """Maps each character to lower case without its diacritic, and a diacritic to ""; filled on first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _WORD.match(char):
            lower = _in_lower_case(char)
            base = unicodedata.normalize("NFD", lower)[0].lower()
            folded = base if base.isascii() else lower
        else:
            folded = "" if char in _DROPPED else char
        if len(self) < _FOLDED_CHARS:
            self[code] = folded
        return folded


def _in_lower_case(char: str) -> str:
    return next((form for form in (char.casefold(), char.lower()) if len(form) == 1), char)


_FOLDS = _Folds()


class _Stemmers(threading.local):
    """One stemmer per thread, without its cache: 0.22 us per word instead of 0.12, but no erased word stays in
    memory.
    """

    def __init__(self) -> None:
        self.porter = Stemmer.Stemmer("porter", 0)


_STEMMERS = _Stemmers()


def fold(text: str) -> str:
    """Return `text` in lower case without diacritics; each word remains one word."""
    return text.lower() if text.isascii() else text.translate(_FOLDS)


def text_words(text: str) -> list[str]:
    """Return the folded words of `text` in order."""
    return list(map(fold, words_of(_runs(text)))) if _is_special(text) else _WORD.findall(fold(text))


def pieces(text: str) -> list[str]:
    """Split `text` into pieces: words at odd positions, the text between them at even positions.

    If a word overlaps the next one, its piece omits the letter that they share (`words_of`).
    """
    if _is_special(text):
        return _runs(text)
    return (_PIECES if text.isascii() else _MARKED_PIECES).split(text)


def words_of(split: Sequence[str]) -> list[str]:
    """Return the words of a text split by `pieces`, one for each piece at an odd position, without folding."""
    words = list(split[1::2])
    for place in overlaps(split):
        words[place] += first_letter(words[place + 1])
    return words


def overlaps(split: Sequence[str]) -> list[int]:
    """Return the indices of words in `pieces` that include the first letter of the next word."""
    gaps, words = split[2:-1:2], split[1::2]
    if "" not in gaps:
        return []
    return [
        place
        for place, gap in enumerate(gaps)
        if not gap and _LETTER.match(words[place]) and _LETTER.match(words[place + 1])
    ]


def _is_special(text: str) -> bool:
    return not text.isascii() and _SPECIAL.search(text) is not None


def _runs(text: str) -> list[str]:
    """Return the `pieces` of a text of any script; the last piece of a run without spaces has two letters."""
    split, end = [], 0
    for found in _RUNS.finditer(text):
        split.append(text[end : found.start()])
        end = found.end()
        letters = _LETTER.findall(text, *found.span(1)) if found[1] else [found[0]]
        for letter in letters[:-2]:
            split += [letter, ""]
        split.append("".join(letters[-2:]))
    return [*split, text[end:]]


def first_letter(piece: str) -> str:
    """Return the letter that a piece shares with the previous word, or "" if they do not overlap."""
    found = _LETTER.match(piece)
    return found[0] if found else ""


def stems(folded: Sequence[str]) -> list[str]:
    """Return the Porter stems of folded words; each begins with the first character of its word. Thread-safe."""
    return [
        stem if _SHORTEST_INFLECTED <= len(word) <= LONGEST_WORD else word
        for word, stem in zip(folded, _STEMMERS.porter.stemWords(folded), strict=True)
    ]


def query_words(text: str) -> list[str]:
    """Return the distinct words to search for, in order and lower case; stop words only if there are no other words."""
    text = text[:_READ_CHARS]
    found = words_of(_runs(text)) if _is_special(text) else _WORD.findall(text)
    words = dict.fromkeys(word.lower() for word in found if len(word) <= LONGEST_WORD)
    folded = list(map(fold, words))
    stop_words = stop_words_of(folded)
    telling = [word for word, plain in zip(words, folded, strict=True) if plain not in stop_words]
    return (telling or list(words))[:_MOST_WORDS]


def is_foreign(text: str) -> bool:
    """Whether the first words of a text are in a language other than English that uses Latin letters."""
    return bool(foreign_stop_words(text_words(text[:_LANGUAGE_CHARS])))


def said_words(text: str) -> list[str]:
    """Return the words of `text` in order, without case, surrounding punctuation, articles and courtesies.

    Signs, symbols, question marks, emoji and all other words are kept, so that "succeeded" and "almost succeeded", "-5"
    and "5", "from A to B" and "from B to A" differ. If nothing is left, returns all words, or the text itself.
    """
    words = [word.strip(_PUNCTUATION) for word in unicodedata.normalize("NFC", text).casefold().split()]
    words = [word for word in words if word]
    bare = [word for word in words if word not in _ARTICLES]
    while bare and bare[-1] in _COURTESIES:
        bare.pop()
    return list(dropwhile(_COURTESIES.__contains__, bare)) or words or [text]


def first_said_word(text: str) -> str:
    """Return the first of `said_words`, in a third of its time."""
    for word in unicodedata.normalize("NFC", text).casefold().split():
        bare = word.strip(_PUNCTUATION)
        if bare and bare not in _ARTICLES and bare not in _COURTESIES:
            return bare
    return said_words(text)[0]


def asks(text: str) -> bool:
    """Whether a text ends with a question, that is, has a question mark in its last two fifths."""
    return not _QUESTION_MARKS.isdisjoint(text[len(text) * 3 // 5 :])


def said(text: str) -> str:
    """Return `said_words`, joined by spaces."""
    return " ".join(said_words(text))


def fingerprint(*texts: str) -> int:
    """Return 63 bits of XXH3 over the texts, which are equal if the `said_words` of each text are equal."""
    return fingerprint_of_said(*map(said, texts))


def fingerprint_of_said(*texts: str) -> int:
    """Return the `fingerprint` of texts that are results of `said`."""
    return xxhash.xxh3_64_intdigest("\0".join(texts).encode("utf-8", "surrogatepass")) >> 1
