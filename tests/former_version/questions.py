"""The questions that both versions answer about the fixture, and the form in which answers are compared.

`make.py` queries the earlier version, and the tests query the current one. Each version gets a freshly unpacked fixture
and the same questions in the same order, because each recall is counted and shifts the mean of the queries, and so
changes later answers.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import Any

HERE = Path(__file__).parent
ARCHIVE = HERE / "former.tar.xz"
ANSWERS = HERE / "answers.json"

SETTINGS = (
    *("--set", "embedder.scheme=float32"),
    *("--set", "embedder.allow_download=false"),
    *("--set", "recall.deadline_ms=60000"),
)
"""float32 gives the same vectors on every processor (to about 1e-6); int8 depends on the kernels. The deadline gives a
busy machine time to load the model."""

PLAIN = ("--data-dir", "{root}/plain")
ENCRYPTED = ("--data-dir", "{root}/encrypted", "--set", "encryption.keys_folder={root}/keys")
RESTORED = ("--data-dir", "{root}/restored")
IMPORTED = ("--data-dir", "{root}/imported")
ALICE, BOB, ERIN = ("--user", "alice"), ("--user", "bob"), ("--user", "erin")
AT = ("--at", "2026-02-16T10:00:00Z")

LOGOUTS = "customers are signed out at random while they pay"
REVENUE = "why was yesterday's revenue counted twice?"

QUESTIONS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", *PLAIN),
    "verify backup": ("verify", "{root}/backup", *PLAIN),
    "stats of alice": ("stats", *PLAIN, *ALICE),
    "stats of bob": ("stats", *PLAIN, *BOB),
    "stats of a user without memories": ("stats", *PLAIN, "--user", "zoe"),
    "keys": ("keys", "list", *PLAIN),
    "quarantine": ("quarantine", "list", *PLAIN),
    "export of alice": ("export", "{root}/again.jsonl", *PLAIN, *ALICE),
    "runs of alice": ("trajectory", "list", *PLAIN, *ALICE),
    "runs of bob": ("trajectory", "list", *PLAIN, *BOB),
    "a run by hand": ("trajectory", "show", "lesson-03", *PLAIN, *ALICE),
    "a run of a conductor": ("trajectory", "show", "pay-102", *PLAIN, *ALICE),
    "an unknown run": ("trajectory", "show", "no-such-run", *PLAIN, *ALICE),
    "sona of alice": ("sona", "status", *PLAIN, *ALICE),
    "sona of bob": ("sona", "status", *PLAIN, *BOB),
    "hybrid": ("recall", LOGOUTS, *PLAIN, *ALICE, *AT),
    "vector": ("recall", LOGOUTS, "--mode", "vector", *PLAIN, *ALICE, *AT),
    "lexical": ("recall", "race token rotation", "--mode", "lexical", *PLAIN, *ALICE, *AT),
    "learned": ("recall", LOGOUTS, "--set", "learning.mode=on", *PLAIN, *ALICE, *AT),
    "not learned": ("recall", LOGOUTS, "--set", "learning.mode=off", *PLAIN, *ALICE, *AT),
    "more words": ("recall", LOGOUTS, "--set", "recall.alpha=0.2", *PLAIN, *ALICE, *AT),
    "of a kind and quality": (
        "recall", LOGOUTS, "--kind", "strategy", "--min-quality", "0.7", "--top-k", "3", *PLAIN, *ALICE, *AT,
    ),
    "of a tag": ("recall", "staging", "--tag", "deploy", *PLAIN, *ALICE, *AT),
    "of a session": ("recall", REVENUE, "--session", "double-revenue", *PLAIN, *BOB, *AT),
    "of days": ("recall", REVENUE, "--since", "2026-01-28", "--until", "2026-01-31", *PLAIN, *BOB, *AT),
    "dates lift": ("recall", "what did we fix two weeks ago?", *PLAIN, *ALICE, *AT),
    "dates filter": ("recall", "what did we fix two weeks ago?", "--dates", "filter", *PLAIN, *ALICE, *AT),
    "an erased session": ("recall", "the customer join", "--session", "join-memory", *PLAIN, *BOB, *AT),
    "context": ("recall", LOGOUTS, "--profile", "before_planning", "--context", *PLAIN, *ALICE, *AT),
    "erasure, dry run": ("forget", "--session", "logouts", "--dry-run", *PLAIN, *ALICE),
    "encryption": ("encryption", "status", *ENCRYPTED),
    "verify encrypted": ("verify", *ENCRYPTED),
    "stats, encrypted": ("stats", *ENCRYPTED, *ERIN),
    "hybrid, encrypted": ("recall", LOGOUTS, *ENCRYPTED, *ERIN, *AT),
    "lexical, encrypted": ("recall", "mutex", "--mode", "lexical", *ENCRYPTED, *ERIN, *AT),
    "runs, encrypted": ("trajectory", "list", *ENCRYPTED, *ERIN),
    "encrypted, without the keys": ("stats", *ENCRYPTED[:2], *ERIN),
    "restore": ("restore", "{root}/backup", *RESTORED),
    "verify restored": ("verify", *RESTORED),
    "stats, restored": ("stats", *RESTORED, *ALICE),
    "hybrid, restored": ("recall", LOGOUTS, *RESTORED, *ALICE, *AT),
    "import": ("import", "{root}/alice.jsonl", *IMPORTED, *ALICE),
    "import again": ("import", "{root}/alice.jsonl", *IMPORTED, *ALICE),
    "stats, imported": ("stats", *IMPORTED, *ALICE),
    "import of what was learned": ("sona", "import", "{root}/alice.sona", *IMPORTED, *ALICE),
    "sona, imported": ("sona", "status", *IMPORTED, *ALICE),
    "hybrid, imported": ("recall", LOGOUTS, *IMPORTED, *ALICE, *AT),
    "rebuild": ("rebuild", *PLAIN, *ALICE),
    "hybrid, rebuilt": ("recall", LOGOUTS, *PLAIN, *ALICE, *AT),
}  # fmt: skip

UNLIKE = frozenset({
    "recall_id", "took_ms", "consolidated_at", "last_recalled_at", "pid", "version",
    "disk_bytes", "state_bytes", "erased_at", "unbuilt", "plan", "gate",
})  # fmt: skip
"""Fields that are not compared: ids and times of the questions, file sizes, and fields changed on purpose.

`unbuilt` lists derived files, which had other names in 0.1.0 and are replaced when the store is opened. `plan`
described how a filter was applied; only one way remains. The learning `gate` now counts from the second run, not from
the fiftieth, and requires more evidence.
"""

ADDED = frozenset({
    "type", "phase", "updated_at", "waiting", "excluded", "relevance", "learned", "failed",
    "runs", "shared_steps", "failed_steps", "is_cancelled",
    "conclusions", "shared", "unpublished", "orgs", "tier", "passage_at", "offers", "ratings",
    "schema_version", "created_at", "rebuilt_at", "ndim", "total", "cached_from", "engine",
    "judgement", "judge", "provider", "plain_index", "history", "most_credited",
    "person", "age_days",
})  # fmt: skip
"""Fields that later versions added to their answers."""
ANY_RELEVANCE = ("--set", "recall.min_relevance=0")
"""Options that only later versions receive, because the earlier version ignored relevance."""
NO_RUNS = {"context": ("--runs", "0")}
"""Options that only later versions receive, by question, because the earlier version's blocks had no runs."""
RANKING = frozenset({"score", "sona_score", "explanation", "times_recalled"})
"""Fields of a memory that depend on the ranking; later versions replaced that ranking."""
MOST = 0.6
"""The minimum share of a hybrid recall's memories that later versions must also find."""
PENDING = "word_vectors_pending"
"""Marks answers from the earlier version's files, which have no word vectors until upkeep adds them."""

TOLERANCE = 1e-4
_TEXT = ("context",)


def unpack(root: Path) -> None:
    """Unpack the fixture into `root`, with the file modes that the earlier version set."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)  # filters were added in Python 3.11.4
        archive.extractall(root)


def answers(root: Path, *more: str, own: Mapping[str, Sequence[str]] = MappingProxyType({})) -> dict[str, Any]:
    """Return the answers of the imported version's command line to all questions, in order, with the options `more`.
    `own` contains additional options for individual questions.
    """
    return {name: answer(root, name, *more, *own.get(name, ())) for name in QUESTIONS}


def answer(root: Path, name: str, *more: str) -> Any:
    """Return the exit code and the comparable answer to one question."""
    words = [word.replace("{root}", str(root)) for word in QUESTIONS[name]]
    options = [] if name in _TEXT else ["--json"]
    code, shown, errors = run(*words, *SETTINGS, *more, *options)
    told = shown if code in (0, 2) and shown else errors
    document = told if name in _TEXT else _documents(told)
    return {"exit": code, "answer": comparable(document, str(root))}


def differences(former: Any, present: Any, path: str = "") -> list[str]:
    """Return the places where two comparable answers differ; numbers may differ by `TOLERANCE`."""
    if isinstance(former, dict) and isinstance(present, dict):
        names = sorted((former.keys() | present.keys()) - (ADDED - former.keys()) - UNLIKE)
        pairs = [(f"{path}.{name}", former.get(name, "no field"), present.get(name, "no field")) for name in names]
        return [line for place, *pair in pairs for line in differences(*pair, place)]
    if isinstance(former, list) and isinstance(present, list) and len(former) == len(present):
        elements = enumerate(zip(former, present, strict=True))
        return [line for place, pair in elements for line in differences(*pair, f"{path}[{place}]")]
    numbers = isinstance(former, float | int) and isinstance(present, float | int)
    same = abs(former - present) <= TOLERANCE if numbers else former == present
    return [] if same else [f"{path}: {former!r} became {present!r}"]


def differences_of_recalls(former: Any, present: Any) -> list[str]:
    """Return how two recalls differ other than in ranking: in the first memory, in too many memories, or in a field.

    Recalls by words alone or by vectors alone must also have the same order: see `same_order`.
    """
    before, now = ({one["record"]["id"]: _unranked(one) for one in memories} for memories in (former, present))
    common = [id_ for id_ in before if id_ in now]
    lines = [line for id_ in common for line in differences(before[id_], now[id_], f"[{id_}]")]
    if list(before)[:1] != list(now)[:1]:
        lines.append(f"[0]: {list(before)[:1]} became {list(now)[:1]}")
    if len(before) != len(now) or len(common) < MOST * len(before):
        lines.append(f"{list(before)} became {list(now)}")
    return lines


def same_order(former: Any, present: Any) -> bool:
    """Return whether two recalls contain the same memories in the same order."""
    return [one["record"]["id"] for one in former] == [one["record"]["id"] for one in present]


def _unranked(value: Any) -> Any:
    """Remove, at any depth, the fields that depend on the ranking."""
    if isinstance(value, dict):
        return {name: _unranked(one) for name, one in value.items() if name not in RANKING}
    return [_unranked(one) for one in value] if isinstance(value, list) else value


@contextmanager
def _command_line(words: Sequence[str]) -> Iterator[None]:
    """Set this process's arguments within the block, and clear our settings from its environment."""
    argv, environment = sys.argv, dict(os.environ)
    sys.argv = ["memory-agent", *words]
    for name in environment:
        if name.startswith("MEMORY_AGENT_") and name != "MEMORY_AGENT_MODEL_CACHE":
            del os.environ[name]
    try:
        yield
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)


def run(*words: str) -> tuple[int, str, str]:
    """Run `memory-agent WORDS` in this process; return its exit code, standard output and standard error."""
    from memory_agent.__main__ import main

    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with _command_line(words), redirect_stdout(out), redirect_stderr(errors):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code, _written(out), _written(errors)


def write_answers(former: dict[str, Any]) -> None:
    """Write `answers.json`, with one question per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(told, ensure_ascii=False)}" for name, told in former.items()]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def _documents(text: str) -> Any:
    """Return the JSON document or, for JSON lines, a list of the document on each line that starts with `{`."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def comparable(document: Any, root: str = "/nowhere") -> Any:
    """Remove fields that differ between two runs, and replace the fixture's path with ROOT."""
    if isinstance(document, dict):
        return {key: comparable(value, root) for key, value in document.items() if key not in UNLIKE}
    if isinstance(document, list | tuple):
        return [comparable(value, root) for value in document if value != PENDING]
    if isinstance(document, float):
        return round(document, 6)
    return document.replace(root, "ROOT") if isinstance(document, str) else document
