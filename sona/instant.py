"""The instant layer: a MicroLoRA trained on exemplars to move each request towards its own answer.

The layer is active while the bank is nearly empty, and again once the bank cannot hold every lesson. A full training
run processes the exemplars in order, in blocks of 128. Each block is trained with the EWC penalty for earlier blocks,
and with a replay of some of their examples.

Shapes: n = exemplars, d = dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from sona.exemplars import Exemplar
from sona.lesson import Array
from sona.listwise import Example, contrast, negatives, replayed
from sona.micro_lora import MicroLora

COLD = 16  # with at least this many exemplars, the bank is used without this layer
_SAME_REQUEST = 0.95
_STRETCH = 128
_REPLAYED_OF_A_STRETCH = 64


class InstantLayer:
    """A MicroLoRA trained on exemplars. Deterministic. Not thread-safe."""

    def __init__(self, ndim: int) -> None:
        self._ndim = ndim
        self._lora = MicroLora(ndim)

    def move(self, request: Array) -> Array:
        """Move and normalise `request`, a unit vector (d,); before training, return it unchanged."""
        return self._lora.adapt(request)

    def step(self, new: Exemplar, exemplars: Sequence[Exemplar]) -> None:
        """Take one gradient step on `new`, which must be among `exemplars`, and on a replay of other exemplars."""
        others = [one for one in exemplars if one.number != new.number]
        again = [others[place] for place in replayed(len(others), [len(others)])]
        examples = self._examples([new, *again], exemplars)
        if examples:
            self._lora.step(examples)

    def train(self, exemplars: Sequence[Exemplar], takes_part: bool) -> None:
        """Train from scratch on all exemplars. Without `takes_part`, reset to the identity instead."""
        self._lora = MicroLora(self._ndim)
        if not takes_part:
            return
        if len(exemplars) < COLD:
            for place, one in enumerate(exemplars):
                self.step(one, exemplars[: place + 1])
            return
        for start in range(0, len(exemplars), _STRETCH):
            earlier = [exemplars[place] for place in replayed(start, [start], _REPLAYED_OF_A_STRETCH)]
            self._lora.train(self._examples([*exemplars[start : start + _STRETCH], *earlier], exemplars))

    def to_bytes(self) -> bytes:
        return self._lora.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, ndim: int) -> Self:
        """Restore an object from the output of `to_bytes`. Raises `DamagedStateError`."""
        layer = cls(ndim)
        layer._lora = MicroLora.from_bytes(data, ndim)
        return layer

    def _examples(self, chosen: Sequence[Exemplar], exemplars: Sequence[Exemplar]) -> list[Example]:
        """Return the training examples of `chosen`, except exemplars without weight or without negatives."""
        weighed = [one for one in chosen if one.weight > 0.0]
        if not weighed:
            return []
        answers = np.array([one.answer for one in exemplars])
        requests = np.array([one.request for one in exemplars])
        # Seeded by position, because with lesson numbers, the result would depend on which lessons were forgotten.
        places = {one.number: place for place, one in enumerate(exemplars)}
        examples = []
        for one in weighed:
            place, same = places[one.number], np.flatnonzero(requests @ one.request > _SAME_REQUEST)
            rows = negatives(one.request, answers, [place], same.tolist(), seed=[place])
            if len(rows):
                examples.append(contrast(one.request, one.answer[None], (1.0,), answers[rows], min(one.weight, 1.0)))
        return examples
