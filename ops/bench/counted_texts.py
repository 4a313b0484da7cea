"""Counts words in texts, exactly as a store of the same texts does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from memory_agent.learning.attribution import statements, stem


class CountedTexts:
    """Counts how many texts contain a word."""

    def __init__(self, texts: Iterable[str]) -> None:
        having = [{word for one in statements(text) for word in one.words} for text in texts]
        self.memories = len(having)
        self._having = Counter(word for words in having for word in words)

    def having(self, words: Sequence[str]) -> Mapping[str, int]:
        """Return how many texts contain each word, in any inflection."""
        return {word: self._having[stem(word)] for word in words}
