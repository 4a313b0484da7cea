"""The real model, with a recorder of its calls: which text is begun and ended, in which order."""

from __future__ import annotations

import os
import threading

from memory_agent.embedders import EmbedderInfo
from memory_agent.embedders.minilm import MiniLM
from memory_agent.records import Embedding

WAIT_S = 60.0


class Witness:
    """The real model; records which text is begun and ended, and lets a test hold a text before it begins."""

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

    def embed(self, text: str) -> Embedding:
        self.events.append(("begun", text))
        self.niceness[text] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        if text in self._held:
            self._reached[text].set()
            assert self._held[text].wait(WAIT_S)
        vector = self._model.embed(text)
        self.events.append(("ended", text))
        return vector

    def begun(self, text: str) -> int:
        return self.events.count(("begun", text))
