"""The real model, with a record of the order in which texts start and finish."""

from __future__ import annotations

import os
import threading

from memory_agent.embedders import EmbedderInfo
from memory_agent.embedders.minilm import MiniLM, Reading
from memory_agent.records.embedded import Embedded, EmbeddedQuery

WAIT_S = 60.0


class Witness:
    """The real model; records when it starts and finishes each text, and lets a test delay the start of a text."""

    def __init__(self, model: MiniLM) -> None:
        self._model = model
        self.events: list[tuple[str, str]] = []
        self.niceness: dict[str, int] = {}
        self._held: dict[str, threading.Event] = {}
        self._reached: dict[str, threading.Event] = {}

    @property
    def info(self) -> EmbedderInfo:
        return self._model.info

    def count_tokens(self, text: str) -> int:
        return self._model.count_tokens(text)

    def hold(self, text: str) -> None:
        self._held[text] = threading.Event()
        self._reached[text] = threading.Event()

    def await_reached(self, text: str) -> None:
        assert self._reached[text].wait(WAIT_S)

    def release(self, text: str) -> None:
        self._held[text].set()

    def release_all(self) -> None:
        for held in self._held.values():
            held.set()

    def embed_query(self, text: str) -> EmbeddedQuery:
        self._begin(text)
        found = self._model.embed_query(text)
        self.events.append(("ended", text))
        return found

    def begin_text(self, text: str) -> WitnessedReading:
        return WitnessedReading(self, self._model.begin_text(text), text)

    def _begin(self, text: str) -> None:
        self.events.append(("begun", text))
        self.niceness[text] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        if text in self._held:
            self._reached[text].set()
            assert self._held[text].wait(WAIT_S)

    def begun(self, text: str) -> int:
        return self.events.count(("begun", text))


class WitnessedReading:
    """A `Reading` that records each passage except the first as ("passage", text)."""

    def __init__(self, witness: Witness, reading: Reading, text: str) -> None:
        self._witness = witness
        self._reading = reading
        self._text = text
        self._steps = 0

    def step(self) -> Embedded | None:
        self._steps += 1
        if self._steps == 1:
            self._witness._begin(self._text)
        else:
            self._witness.events.append(("passage", self._text))
        found = self._reading.step()
        if found is not None:
            self._witness.events.append(("ended", self._text))
        return found
