"""An embedder server, as a process, that prints which text is begun and ended: `witness_server.py ENDPOINT CACHE`.

Texts whose first word is `held` are held in the midst of their embedding until a line comes in on standard input.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from embedder_inputs import INT8

from memory_agent.embedders.lanes import LanedEmbedder
from memory_agent.embedders.minilm import MiniLM, open_minilm
from memory_agent.embedders.server import EmbedderServer, ModelKeeper
from memory_agent.records import Embedding


class Teller:
    """The real model; prints its calls to standard output."""

    def __init__(self, model: MiniLM, go: threading.Event) -> None:
        self._model = model
        self._go = go
        self.info = model.info

    def count_tokens(self, text: str) -> int:
        return self._model.count_tokens(text)

    def embed(self, text: str) -> Embedding:
        sys.stdout.write(f"begun {text}\n")
        sys.stdout.flush()
        if text.startswith("held"):
            self._go.wait()
        vector = self._model.embed(text)
        sys.stdout.write(f"ended {text}\n")
        sys.stdout.flush()
        return vector


class Keeper(ModelKeeper):
    """Holds an embedder from the start."""

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
