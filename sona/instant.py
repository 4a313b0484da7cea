"""The instant layer at work: what a MicroLoRA is shown, and when it takes part.

It takes part while the bank has next to nothing to go by, and again once the bank cannot hold every lesson; in between
the bank alone is better (SONA.md 4). The exemplars are its lessons: each request should find its own answer among those
of the others. Trained as a whole it goes over them in their order, stretch by stretch, each held by the springs of
those before, with some of these replayed. What this does not do: gradients (`micro_lora`), solve (`reasoning_bank`).

Shapes: n = exemplars, d = dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from sona.exemplars import Exemplar
from sona.lesson import Array, Vector
from sona.listwise import Example, contrast, negatives, replayed
from sona.micro_lora import MicroLora

COLD = 16
"""Exemplars from which on the bank goes by itself."""
_SAME_REQUEST = 0.95
_STRETCH = 128
_REPLAYED_OF_A_STRETCH = 64


class InstantLayer:
    """A MicroLoRA and the choice of its examples. Deterministic. Not thread-safe."""

    def __init__(self, ndim: int) -> None:
        """Start as the identity for requests of shape (ndim,)."""
        self._ndim = ndim
        self._lora = MicroLora(ndim)

    def move(self, request: Array) -> Array:
        """Return where `request`, (d,) of unit length, is moved to, of unit length; itself where nothing was learnt."""
        return self._lora.adapt(request)

    def step(self, new: Exemplar, exemplars: Sequence[Exemplar]) -> None:
        """Learn at once from a new exemplar, which is among `exemplars`, and from a few of the others again."""
        others = [one for one in exemplars if one.number != new.number]
        again = [others[place] for place in replayed(len(others), [len(others)])]
        examples = self._examples([new, *again], exemplars)
        if examples:
            self._lora.step(examples)

    def train(self, exemplars: Sequence[Exemplar], takes_part: bool) -> None:
        """Learn all exemplars anew; be the identity where it does not take part."""
        self._lora = MicroLora(self._ndim)
        if not takes_part:
            return
        if len(exemplars) < COLD:
            for place, one in enumerate(exemplars):
                self.step(one, exemplars[: place + 1])
            return
        for start in range(0, len(exemplars), _STRETCH):
            earlier = [exemplars[place] for place in replayed(start, [start], _REPLAYED_OF_A_STRETCH)]
            self._lora.study(self._examples([*exemplars[start : start + _STRETCH], *earlier], exemplars))

    def to_bytes(self) -> bytes:
        """Return the state; `from_bytes` makes an equal layer of it."""
        return self._lora.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, ndim: int) -> Self:
        """Return the layer that `to_bytes` saved. Raises `DamagedStateError`."""
        layer = cls(ndim)
        layer._lora = MicroLora.from_bytes(data, ndim)
        return layer

    def _examples(self, chosen: Sequence[Exemplar], exemplars: Sequence[Exemplar]) -> list[Example]:
        """Return what each of `chosen` is to find among all answers; nothing of one without a counterexample."""
        weighed = [one for one in chosen if one.weight > 0.0]
        if not weighed:
            return []
        answers = np.array([one.answer for one in exemplars])
        requests = np.array([one.request for one in exemplars])
        places = {one.number: place for place, one in enumerate(exemplars)}  # and no numbers: these tell of others gone
        rows_of_all = np.arange(len(exemplars))
        examples = []
        for one in weighed:
            place, same = places[one.number], np.flatnonzero(requests @ one.request > _SAME_REQUEST)
            rows = negatives(one.request, answers, rows_of_all, [place], [place], excluded=same.tolist())
            if len(rows):
                examples.append(_example(one, answers[rows]))
        return examples


def _example(one: Exemplar, others: Vector) -> Example:
    return contrast(one.request, one.answer[None], (1.0,), others, min(one.weight, 1.0))
