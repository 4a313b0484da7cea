"""Counts the groups that each matching rule forms from real sentences, and the statements that similarity confuses.

Each run stands for a user who offers every sentence that the run's agent wrote. A group is a statement offered by at
least five users. By similarity, a group consists of a sentence and all sentences whose cosine to it reaches the
threshold; pairs that differ in a number or a negation are counted as confused, and some are printed for inspection.
Finally, groups are counted among learned patterns: runs are divided among six users, and each user offers all of its
patterns.

    python -m ops.bench.offers AIRLINE_FILE SWE_FILE      three minutes; prints the numbers in decision 0025
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory_agent.embedders import open_embedder
from memory_agent.knowledge.offers import match_key
from memory_agent.learning import words_without_figures
from memory_agent.learning.attribution import statements
from memory_agent.learning.patterns import PastRun, find_patterns
from memory_agent.records.embedded import Embedding
from memory_agent.records.shared import SharedContent
from memory_agent.settings import Settings
from memory_agent.storage.terms import fingerprint
from ops.bench.patterns import past_runs

LEAST = 5
_COSINES = (0.9, 0.95)
_SHOWN = 24
_BLOCK = 256
_USERS = 6
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WORDS = range(4, 61)

Run = Mapping[str, Any]


def sentences(texts: Sequence[str]) -> set[str]:
    """Return the distinct sentences of 4 to 60 words."""
    parts = (part.strip() for text in texts for part in _SENTENCE.split(text))
    return {part for part in parts if len(part.split()) in _WORDS}


def offered(airline: Sequence[Run], swe: Sequence[Run]) -> dict[str, set[int]]:
    """Return the numbers of the users who offer each sentence."""
    written = [[step["thought"] for step in run["steps"]] for run in swe]
    written += [[one["content"] or "" for one in run["messages"] if one["role"] == "assistant"] for run in airline]
    users: defaultdict[str, set[int]] = defaultdict(set)
    for user, texts in enumerate(written):
        for sentence in sentences(texts):
            users[sentence].add(user)
    return dict(sorted(users.items()))


def key_of(text: str) -> object:
    """Return the shipped matching key, which is equal for matching sentences."""
    return match_key(SharedContent(item_id="", content_type="pattern", title="-", summary=text, version="1"))


def same_words(users: Mapping[str, set[int]]) -> str:
    """Return a line with the numbers of groups formed by the shipped rule and by duplicate fingerprints."""
    counts = []
    for key in (key_of, fingerprint):
        groups: defaultdict[object, set[int]] = defaultdict(set)
        for text, by in users.items():
            groups[key(text)] |= by
        counts.append(sum(len(group) >= LEAST for group in groups.values()))
    return f"same words: {counts[0]} groups; by fingerprints: {counts[1]}"


def close(users: Mapping[str, set[int]], vectors: Embedding, least: float) -> str:
    """Return the number of groups at a cosine threshold, the number of confused pairs, and some of the pairs."""
    texts, by = list(users), list(users.values())
    blocks = (vectors[start : start + _BLOCK] @ vectors.T >= least for start in range(0, len(texts), _BLOCK))
    near = [np.flatnonzero(row) for block in blocks for row in block]
    reach = [len(set().union(*(by[one] for one in rows))) if rows.size > 1 else len(by[rows[0]]) for rows in near]
    is_free, pairs, groups = np.ones(len(texts), bool), [], 0
    for place in sorted(range(len(texts)), key=lambda one: -reach[one]):
        rows = [int(row) for row in near[place] if is_free[row]]
        if not is_free[place] or len(set().union(*(by[row] for row in rows))) < LEAST:
            continue
        is_free[rows] = False
        groups += 1
        pairs += [(texts[place], texts[row]) for row in rows if key_of(texts[row]) != key_of(texts[place])]
    mixed = sum(_claims(one) != _claims(other) for one, other in pairs)
    drawn = np.random.default_rng(7).permutation(len(pairs))[:_SHOWN]
    lines = [f"cosine {least}: {groups} groups, {len(pairs)} pairs, {mixed} that differ in a number or negation"]
    return "\n".join([*lines, *(f"    {pairs[one][0][:90]} | {pairs[one][1][:90]}" for one in drawn)])


def _claims(text: str) -> tuple[frozenset[str], bool]:
    found = statements(text)
    return frozenset().union(*(one.numbers for one in found)), any(one.denies for one in found)


def of_patterns(runs: Sequence[PastRun]) -> str:
    """Return a line with the number of patterns learned from the users' runs, and the number of groups they form."""
    groups: defaultdict[object, set[int]] = defaultdict(set)
    learned = 0
    for user in range(_USERS):
        for pattern in find_patterns(runs[user::_USERS]):
            words = words_without_figures(pattern.record)
            if words:
                learned += 1
                groups[pattern.record.title, key_of(words)].add(user)
    return f"learned patterns: {learned}, {sum(len(group) >= LEAST for group in groups.values())} groups"


def main(arguments: list[str]) -> int:
    """Print the results for the given files."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    airline, swe = (json.loads(Path(file).read_bytes()) for file in arguments)
    users = offered(airline, swe)
    embedder = open_embedder(Settings().embedder)
    try:
        vectors = np.asarray(embedder.embed_texts(list(users)), dtype=np.float32)
        runs = past_runs(airline, lambda run: str(run["instruction"]), embedder)
    finally:
        embedder.close()
    print(f"{len(airline) + len(swe)} users offer {len(users)} sentences")
    print(same_words(users))
    for least in _COSINES:
        print(close(users, vectors, least))
    print(of_patterns(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
