"""Builds a document's query without a language model.

The query contains the title, the headings, and the sentences nearest to the centroid of all sentences (extractive
summarization; Radev et al. 2004, MEAD). Sentences that changed since the last revision come first. At most 48
sentences, taken from all parts of the text, are embedded.

Shapes: n sentences, d dimensions.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from memory_agent.records.embedded import Embedding

EmbedTexts = Callable[[Sequence[str]], Embedding | None]
"""Returns the vectors (n, d) of texts, or None if there is no model."""
Hashes = npt.NDArray[np.int64]

_MOST_CHARS = 2_000_000
_MOST_SENTENCES = 20_000
_MOST_EMBEDDED = 48
_MOST_DOCUMENTS = 16
_HEADINGS = 6
_CHANGED = 4
_CENTRAL = 4
_LEAST_CHARS = 20
_SENTENCE_CHARS = 300
_HEADING_CHARS = 120
_QUERY_CHARS = 1_500
_HEADING = re.compile(r"^(?:#{1,6}\s+(?P<marked>.+?)\s*#*|(?P<underlined>[^\s].*)\n(?:={3,}|-{3,})\s*)$", re.MULTILINE)
_END = re.compile(r"(?<=[.!?…。！？])[\"')\]]*\s+|\n\s*\n|\n(?=\s*(?:[-*+]|\d+[.)])\s)|[。！？]")
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_SPACE = re.compile(r"\s+")


class Revisions:
    """Hashes of the sentences in the last revision, for each of the 16 most recently changed documents. Thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Hashes] = OrderedDict()
        self._guard = threading.Lock()

    def changed(self, document: str, sentences: Sequence[str]) -> list[int]:
        """Store a revision; return the positions of its new sentences (none for a first revision)."""
        hashes = np.array([hash(sentence) for sentence in sentences], dtype=np.int64)
        with self._guard:
            known = self._known.pop(document, None)
            self._known[document] = hashes
            while len(self._known) > _MOST_DOCUMENTS:
                self._known.popitem(last=False)
        return [] if known is None else np.flatnonzero(~np.isin(hashes, known)).tolist()


def document_query(title: str, text: str, document: str, revisions: Revisions, embed: EmbedTexts) -> str:
    """Return a query built from a document's text, at most 1,500 characters, or "" if the text has no usable sentence.

    `document` identifies the document in `revisions`; if it is "", the whole text is treated as unchanged. Without a
    model, the first sentences are used instead of the central ones.
    """
    text = text[:_MOST_CHARS]
    found = (match["marked"] or match["underlined"] for match in _HEADING.finditer(text))
    headings = [heading.strip()[:_HEADING_CHARS] for heading in islice(found, _HEADINGS)]
    sentences = split_sentences(_HEADING.sub("\n\n", text))
    changed = revisions.changed(document, sentences) if document else []
    sampled = _to_embed(len(sentences), changed)
    vectors = embed([sentences[place] for place in sampled]) if sampled else None
    is_new = np.isin(sampled, changed)
    places = [*_nearest(is_new, vectors, _CHANGED), *_nearest(np.ones_like(is_new), vectors, _CENTRAL)]
    chosen = [sentences[sampled[place]] for place in dict.fromkeys(places)]
    return _joined([title.strip()[:_HEADING_CHARS], *headings, *chosen])


def split_sentences(text: str) -> list[str]:
    """Return up to 20,000 distinct sentences and list items of a text, each of at most 300 characters."""
    found: dict[str, None] = {}
    for part in _END.split(text):
        line = _SPACE.sub(" ", _BULLET.sub("", part)).strip()
        for start in range(0, len(line), _SENTENCE_CHARS):
            piece = line[start : start + _SENTENCE_CHARS]
            if len(piece) >= _LEAST_CHARS:
                found[piece] = None
        if len(found) >= _MOST_SENTENCES:
            break
    return list(found)[:_MOST_SENTENCES]


def _to_embed(sentences: int, changed: Sequence[int]) -> list[int]:
    """Return the positions of the sentences to embed, in order. At most two thirds of them have changed."""
    new = _spread(changed, 2 * _MOST_EMBEDDED // 3)
    rest = _spread(sorted(set(range(sentences)).difference(changed)), _MOST_EMBEDDED - len(new))
    return sorted([*new, *rest])


def _spread(places: Sequence[int], most: int) -> list[int]:
    if len(places) <= most:
        return list(places)
    return [places[round(place)] for place in np.linspace(0, len(places) - 1, most)]


def _nearest(mask: npt.NDArray[np.bool_], vectors: Embedding | None, most: int) -> list[int]:
    places = np.flatnonzero(mask)
    if vectors is None or not places.size:
        return [int(place) for place in places[:most]]
    own = vectors[places]
    nearness = own @ own.mean(axis=0)
    return [int(place) for place in places[np.argsort(-nearness, kind="stable")[:most]]]


def _joined(parts: Sequence[str]) -> str:
    lines: list[str] = []
    room = _QUERY_CHARS
    for part in dict.fromkeys(filter(None, parts)):
        if len(part) + 1 > room:
            break
        lines.append(part)
        room -= len(part) + 1
    return "\n".join(lines)
