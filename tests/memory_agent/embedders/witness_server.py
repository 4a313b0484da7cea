"""An embedder server process that prints when it starts and finishes each text: `witness_server.py ENDPOINT CACHE`.

Texts whose first word is `held` block after they start, until a line arrives on standard input.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from embedder_inputs import INT8

from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import MiniLM, Reading, open_minilm
from memory_agent.embedders.server import EmbedderServer, ModelKeeper
from memory_agent.records.embedded import Embedded, EmbeddedQuery


class Teller:
    """The real model; prints each call to standard output."""

    def __init__(self, model: MiniLM, go: threading.Event) -> None:
        self._model = model
        self._go = go
        self.info = model.info

    def count_tokens(self, text: str) -> int:
        return self._model.count_tokens(text)

    def embed_query(self, text: str) -> EmbeddedQuery:
        self._tell(f"begun {text}")
        if text.startswith("held"):
            self._go.wait()
        found = self._model.embed_query(text)
        self._tell(f"ended {text}")
        return found

    def begin_text(self, text: str) -> ToldReading:
        return ToldReading(self, text)

    def _tell(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class ToldReading:
    """A `Reading` that prints its start and its end."""

    def __init__(self, teller: Teller, text: str) -> None:
        self._teller = teller
        self._text = text
        self._reading: Reading | None = None

    def step(self) -> Embedded | None:
        if self._reading is None:
            self._teller._tell(f"begun {self._text}")
            if self._text.startswith("held"):
                self._teller._go.wait()
            self._reading = self._teller._model.begin_text(self._text)
        found = self._reading.step()
        if found is not None:
            self._teller._tell(f"ended {self._text}")
        return found


class Keeper(ModelKeeper):
    """A model keeper whose embedder is open from the start."""

    def __init__(self, embedder: LanedEmbedder, cache: Path) -> None:
        super().__init__(INT8, cache, "")
        self._embedder = embedder


def main(endpoint: str, cache: Path) -> None:
    go = threading.Event()
    ended = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            go.set()
        go.set()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    server = EmbedderServer(endpoint, Keeper(LanedEmbedder(Teller(open_minilm(INT8, cache, ""), go)), cache))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve(lambda: not ended.is_set())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
