"""How many of some texts have a word: what the lexicon of a store of these texts would say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from memory_agent.learning.overlap import statements, stem


class CountedTexts:
    """Word counts of a user's memories, from their texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        having = [{word for one in statements(text) for word in one.words} for text in texts]
        self.memories = len(having)
        self._having = Counter(word for words in having for word in words)

    def having(self, words: Sequence[str]) -> Mapping[str, int]:
        """Return how many of the texts have each word, however inflected."""
        return {word: self._having[stem(word)] for word in words}
