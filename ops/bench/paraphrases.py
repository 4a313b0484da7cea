"""Measures the relevance threshold in small stores: paraphrased questions should be answered, and unrelated questions
refused.

The memories in `paraphrases.toml` are divided into stores of 1, 3, 10, 30 and all memories. Each store is asked its own
questions, the next store's questions, and unrelated questions, with the default settings. A store's own question counts
as kept if the answer contains the memory that it paraphrases. Any other question counts as refused if its answer is
empty.

    python -m ops.bench.paraphrases      a minute; writes ops/bench/paraphrases.md
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.memory import Memory
from memory_agent.settings import RecallSettings, Settings

PAGE = Path(__file__).with_name("paraphrases.md")
FILE = Path(__file__).with_name("paraphrases.toml")

_SIZES = (1, 3, 10, 30)
_UNRELATED = 9  # minimum number of unrelated questions per store
_SEED = 1
_DEADLINE_MS = 600_000.0


class Paraphrased(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A memory, and questions that paraphrase it; these may also match other memories with the same `about`."""

    text: str
    asked: list[str]
    about: str | None = None


class Paraphrases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the file: memories, and questions unrelated to all of them."""

    memory: list[Paraphrased]
    unrelated: list[str]


class Shares(NamedTuple):
    """The shares of questions that stores of `size` memories answer or refuse, or NaN if there were no questions."""

    size: int
    kept: float
    others_refused: float
    unrelated_refused: float


def measure(given: Paraphrases, sizes: Sequence[int], embedder: Embedder) -> Iterator[Shares]:
    """Divide the memories into stores of each size, ask the questions, and yield the shares."""
    for size in sizes:
        order = np.random.default_rng(_SEED).permutation(len(given.memory)).tolist()
        stores = [
            [given.memory[place] for place in order[first : first + size]] for first in range(0, len(order), size)
        ]
        kept: list[bool] = []
        others: list[bool] = []
        unrelated: list[bool] = []
        for number, store in enumerate(stores):
            known = {one.about for one in store} - {None}
            beside = [one for one in stores[(number + 1) % len(stores)] if one.about not in known and one not in store]
            turn = np.roll(given.unrelated, -number * _UNRELATED).tolist()
            with (
                tempfile.TemporaryDirectory(prefix="paraphrases-") as folder,
                _filled(folder, store, embedder) as memory,
            ):
                kept += [one.text in _answer(memory, asked) for one in store for asked in one.asked]
                others += [not _answer(memory, asked) for one in beside for asked in one.asked]
                unrelated += [not _answer(memory, asked) for asked in turn[: max(_UNRELATED, size)]]
        yield Shares(size, *(float(np.mean(part)) if part else float("nan") for part in (kept, others, unrelated)))


def _filled(folder: str, store: Sequence[Paraphrased], embedder: Embedder) -> Memory:
    memory = Memory.open(Path(folder) / "user", embedder=embedder)
    for one in store:
        memory.remember(one.text)
    return memory


def _answer(memory: Memory, asked: str) -> list[str]:
    return [found.record.text for found in memory.recall(asked, 10, deadline_ms=_DEADLINE_MS).memories]


def read() -> Paraphrases:
    """Read `paraphrases.toml`."""
    return msgspec.toml.decode(FILE.read_bytes(), type=Paraphrases)


def page(found: Sequence[Shares], given: Paraphrases) -> str:
    """Return the contents of paraphrases.md."""
    questions = sum(len(one.asked) for one in given.memory)
    rows = [
        f"| {one.size} | {one.kept:.2f} | {one.others_refused:.2f} | {one.unrelated_refused:.2f} |".replace("nan", "-")
        for one in found
    ]
    text = [
        "# Relevance in small stores",
        "",
        f"Written by `python -m ops.bench.paraphrases` on {datetime.now(UTC):%Y-%m-%d}; `recall.min_relevance` is",
        f"{RecallSettings().min_relevance:g}. There are {len(given.memory)} memories and {questions} questions that",
        "share few or no words with them, in English, German and Spanish (`paraphrases.toml`). The model supports only",
        "English. *Kept* is the share of the store's own questions whose memory is in the answer. *Refused* is the",
        "share of another store's questions, and of unrelated questions, whose answer is empty.",
        "",
        "| memories | kept | refused, others | refused, unrelated |",
        "|---|---|---|---|",
    ]
    return "\n".join([*text, *rows]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measure all sizes and write paraphrases.md."""
    argparse.ArgumentParser(
        "python -m ops.bench.paraphrases", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    given = read()
    embedder = open_embedder(Settings().embedder)
    try:
        found = list(measure(given, (*_SIZES, len(given.memory)), embedder))
    finally:
        embedder.close()
    PAGE.write_text(page(found, given), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
