"""The judge of one memory: validation, cache and timeouts, with custom rerankers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from memory_agent.errors import ModelError, SettingsError
from memory_agent.rerankers import Judge, Reranker, Selection, Snippet, check_judge
from memory_agent.settings import JudgeSettings

NOW = datetime(2026, 2, 16, 10, tzinfo=UTC)
OFFERED = [Snippet(id=f"id-{place}", text=f"text {place}", score=0.5, timestamp=NOW) for place in range(12)]
LONG_S = 60.0


class First:
    """Selects the first memories, and counts its calls."""

    def __init__(self, number: int = 2) -> None:
        self.number = number
        self.calls = 0

    def __call__(self, query: str, candidates: Sequence[Snippet], most: int, timeout_s: float) -> Selection:
        self.calls += 1
        selected = tuple(snippet.id for snippet in candidates[: self.number])
        return Selection(selected, "notes", tokens_read=1_000, tokens_written=10)


def judge_with(reranker: Reranker, **settings: Any) -> Judge:
    judge = Judge(JudgeSettings(**settings), 2_000.0)
    judge.use(reranker)
    return judge


def test_a_selection_is_counted_with_its_cost() -> None:
    judge = judge_with(First(), usd_per_million_read=0.15, usd_per_million_written=0.6)
    verdict = judge.select("q", OFFERED, LONG_S)
    assert verdict[:4] == (Selection(("id-0", "id-1"), "notes", 1_000, 10), None, "", False)
    assert verdict.counts == {
        "judge.asked": 1,
        "judge.tokens_read": 1_000,
        "judge.tokens_written": 10,
        "judge.billionths_usd": 156_000,
    }


def test_a_selection_is_cached_for_the_same_query_and_the_same_contents() -> None:
    first = First()
    judge = judge_with(first, cache=2)
    for _ in range(2):
        assert judge.select("q", OFFERED, LONG_S).selection == Selection(("id-0", "id-1"), "notes", 1_000, 10)
    assert first.calls == 1
    known = judge.select("q", OFFERED, 0.0)  # needs no time
    assert (known.is_cached, known.counts) == (True, {"judge.cached": 1})
    reworded = [Snippet("id-0", "other text", 0.5, NOW), *OFFERED[1:]]
    moved = [Snippet("id-0", "text 0", 0.5, NOW + timedelta(days=1)), *OFFERED[1:]]
    for query, offered in (("other", OFFERED), ("q", reworded), ("q", moved), ("q", OFFERED[1:]), ("q", OFFERED)):
        assert not judge.select(query, offered, LONG_S).is_cached  # the cache keeps two entries; the last was evicted
    assert first.calls == 6


def test_another_reranker_starts_with_an_empty_cache_and_none_disables_it() -> None:
    judge = judge_with(First(1))
    judge.select("q", OFFERED, LONG_S)
    judge.use(First(3))
    selection = judge.select("q", OFFERED, LONG_S).selection
    assert selection is not None
    assert len(selection.selected) == 3
    judge.use(None)
    assert not judge.is_on


@pytest.mark.parametrize(
    "found",
    [
        Selection(("id-99",)),
        Selection(("id-0", "id-0")),
        Selection(tuple(snippet.id for snippet in OFFERED[:11])),
        Selection("id-0"),  # type: ignore[arg-type]
        Selection((1,)),  # type: ignore[arg-type]
        Selection(("id-0",), notes=None),  # type: ignore[arg-type]
    ],
    ids=["not offered", "twice", "too many", "text", "numbers", "no notes"],
)
def test_an_invalid_selection_is_rejected_and_not_cached(found: Selection) -> None:
    judge = judge_with(lambda *_: found)
    for _ in range(2):
        verdict = judge.select("q", OFFERED, LONG_S)
        assert (verdict.selection, verdict.fault) == (None, "judge_invalid")
        assert verdict.counts == {"judge.asked": 1, "judge.failed": 1}


def raising(query: str, *_: object) -> Selection:
    raise ModelError(f"cannot judge {query}")


def test_a_function_that_raises_or_returns_something_else_is_a_fault() -> None:
    for function in (raising, lambda *_: 1 / 0, lambda *_: ["id-0"]):
        with capture_logs() as logs:
            verdict = judge_with(function).select("a secret", OFFERED, LONG_S)  # type: ignore[arg-type]
        assert (verdict.selection, verdict.fault) == (None, "judge_unavailable")
        assert "secret" not in str(logs)


def test_a_late_function_is_abandoned_and_counts_until_it_returns() -> None:
    release, done = threading.Event(), threading.Semaphore(0)

    def wait(*_: object) -> Selection:
        release.wait()
        done.release()
        return Selection(())

    judge = judge_with(wait, at_once=2, least_ms=1.0)
    for _ in range(2):
        assert judge.select("q", OFFERED, 0.02).fault == "judge_timeout"
    assert judge.select("q", OFFERED, LONG_S).fault == "judge_unavailable"  # without waiting
    release.set()
    for _ in range(2):
        done.acquire()
    while judge.select("q", OFFERED, LONG_S).selection is None:
        pass


def test_it_is_not_called_if_little_time_is_left() -> None:
    first = First()
    verdict = judge_with(first, least_ms=300.0).select("q", OFFERED, 0.299)
    assert (verdict.fault, verdict.counts, first.calls) == ("judge_timeout", {"judge.skipped": 1}, 0)


def first(query: str, candidates: Sequence[Snippet], most: int, timeout_s: float) -> Selection:
    return Selection((candidates[0].id,))


not_a_function = 7


def test_a_function_that_the_settings_name_is_imported_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(JudgeSettings(server=f"{__name__}:first"), 2_000.0)
    assert judge.select("q", OFFERED, LONG_S).selection == Selection(("id-0",))
    monkeypatch.delattr(f"{__name__}.first")  # as on a cluster machine with another version
    verdict = judge.select("r", OFFERED, LONG_S)
    assert (verdict.fault, "cannot be imported" in verdict.problem) == ("judge_unavailable", True)
    judge.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [("no_such:judge", "No module"), ("not_there", "no attribute"), ("not_a_function", "is not a class or function")],
)
def test_a_function_that_cannot_be_imported_is_refused(name: str, said: str) -> None:
    server = name if ":" in name else f"{__name__}:{name}"
    with pytest.raises(SettingsError, match=rf"judge.server: {server} .*{said}"):
        check_judge(JudgeSettings(server=server), 2_000.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": ""}, "judge.model: is empty; name the model that judge.server = openai is to run"),
        ({"url": ""}, "judge.api_key: is empty; name the variable with the key, or set judge.url to a server"),
        ({"most": 51}, "judge.most: is more than judge.candidates (50)"),
        ({"candidates": 5, "most": 5}, "judge.fallback: is more than judge.candidates (5)"),
        ({"least_ms": 2_000.0}, "judge.least_ms: is not below recall.deadline_ms (2000), so the judge is never called"),
        ({"parameters": {"temperature": 0, "stream": True}}, "judge.parameters: must not set stream"),
        ({"api_key": "sk-1"}, "judge.api_key: must name an environment variable"),
        ({"api_key": "${KEY}", "url": "http://10.0.0.9/v1"}, "judge.url: contradicts the api_key"),
        ({"url": "localhost:8080"}, "judge.url: must be http(s)://"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], said: str) -> None:
    sound = {"server": "openai", "url": "http://127.0.0.1:1/v1", "model": "m"}
    check_judge(JudgeSettings(**sound), 2_000.0)
    with pytest.raises(SettingsError) as caught:
        Judge(JudgeSettings(**(sound | fields)), 2_000.0)
    assert said in str(caught.value)
    check_judge(JudgeSettings(**(sound | fields | {"server": "off"})), 2_000.0)
