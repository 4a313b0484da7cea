"""Relations of runs to earlier runs: retries, continuations, and shared memories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_samples import LATER, OBJECTIVE, SMALL, approval, begin, end, failure, things_to_use, whole, without_model
from store_checks import verified

from memory_agent.memory import Memory
from memory_agent.settings import EmbedderSettings, LearningSettings

SAME_WORDS = "fix the RACE in the auth module!"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with without_model(tmp_path / "alice") as memory:
        yield memory


def quality(memory: Memory, run_id: str) -> tuple[float | None, str | None]:
    run = memory.runs.get(run_id)
    assert run is not None
    assert verified(memory._archive.store)
    return None if run.quality is None else round(run.quality, 9), run.revisions[-1].reason if run.revisions else None


def take(memory: Memory, *events: list[dict[str, Any]] | dict[str, Any]) -> None:
    flat = [single for event in events for single in (event if isinstance(event, list) else [event])]
    assert not memory.ingest(flat, now=LATER).rejected


def test_the_same_request_in_other_words_soon_after_is_a_retry(memory: Memory) -> None:
    take(memory, whole("one", 0), begin("two", 20, SAME_WORDS))
    assert quality(memory, "one") == (0.4, "retried")
    assert memory.runs.get("one").revisions[-1].cause == "two"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("minute", "objective"),
    [(20, OBJECTIVE), (20, f"  {OBJECTIVE.upper()} "), (36, SAME_WORDS), (20, "Fix the race in the login page")],
    ids=["the very same words", "the same but for case", "too late", "something else"],
)
def test_requests_that_are_not_retries(memory: Memory, minute: float, objective: str) -> None:
    take(memory, whole("one", 0), begin("two", minute, objective))
    assert quality(memory, "one") == (0.8, "completed")


def test_a_retry_begun_during_the_first_run_counts_once_the_first_run_ended(memory: Memory) -> None:
    take(memory, begin("one", 0), begin("two", 10, SAME_WORDS))
    assert quality(memory, "one") == (None, None)
    take(memory, end("one", 50))
    assert quality(memory, "one") == (0.4, "retried")


def test_a_failed_run_that_is_tried_again_stays_a_failed_one(memory: Memory) -> None:
    take(
        memory, begin("one", 0), failure("one", 5), whole("two", 7, SAME_WORDS), whole("x", 20, "Bake", retry_of="one")
    )
    assert quality(memory, "one") == (0.0, "failed")


def test_an_event_may_name_the_run_that_it_retries(memory: Memory) -> None:
    take(memory, whole("two", 500, "Bake bread", retry_of="one"), whole("one", 0))
    assert quality(memory, "one") == (0.4, "retried")


def test_a_child_of_a_run_is_not_its_retry(memory: Memory) -> None:
    take(memory, begin("one", 0), begin("two", 1, SAME_WORDS, parent_run_id="one"), end("one", 4))
    assert quality(memory, "one") == (0.8, "completed")


def test_a_success_raises_runs_at_most_three_links_back(memory: Memory) -> None:
    take(memory, whole("one", 0, "Task one"))
    for number, name in enumerate(["two", "three", "four"]):
        earlier = ["one", "two", "three"][number]
        take(memory, begin(name, 60 * number + 60, f"Task {name}", previous_run_id=earlier))
        take(memory, end(name, 60 * number + 65, approved=False))
    take(memory, whole("five", 300, "Task five", previous_run_id="four"))
    assert quality(memory, "one") == (0.8, "completed")
    take(memory, approval("four", 400))
    assert quality(memory, "one") == (0.825, "later_success")


def test_the_last_run_of_a_chain_raises_the_others(memory: Memory) -> None:
    take(memory, begin("one", 0, "Task one"), failure("one", 1), whole("a", 100, "Task a", previous_run_id="one"))
    take(memory, begin("b", 200, "Task b", previous_run_id="a"), end("b", 205, approved=False))
    take(memory, begin("c", 300, "Task c", parent_run_id="b"), end("c", 305, approved=False))
    assert [quality(memory, name)[0] for name in ("one", "a", "b", "c")] == [0.0, 0.8, 0.0, 0.0]
    take(memory, whole("d", 400, "Task d", previous_run_id="c"))
    assert quality(memory, "a") == (0.825, "later_success")
    take(memory, approval("b", 500))
    assert quality(memory, "a") == (0.9, "later_success")


def test_a_success_that_is_revised_is_withdrawn_from_earlier_runs(memory: Memory) -> None:
    take(memory, whole("one", 0), whole("two", 100, "Go on", previous_run_id="one"))
    assert quality(memory, "one") == (0.9, "later_success")
    take(memory, whole("other", 101, "Bake", previous_run_id="only-named"))
    take(memory, begin("three", 110, "On, go!"), approval("other", 111, approved=False))  # "three" retries "two"
    assert quality(memory, "two") == (0.4, "retried")
    assert quality(memory, "one") == (0.8, "completed")
    with memory._archive.store.snapshot() as snapshot:
        assert snapshot.trajectory("only-named") is None


def test_a_later_success_that_used_the_same_memory_raises_the_earlier_run(memory: Memory) -> None:
    things = things_to_use(memory)
    take(memory, begin("one", 0), end("one", 5, memory_ids=things[:2]))
    take(memory, begin("two", 100, "Bake bread"), end("two", 105, memory_ids=things[1:3]))
    take(memory, begin("three", 200, "Plan a trip"), end("three", 205, memory_ids=things[2:3]))
    assert [quality(memory, name)[1] for name in ("one", "two", "three")] == [
        "later_success", "later_success", "completed"]  # fmt: skip
    memory.forget([things[1]])
    assert [quality(memory, name)[1] for name in ("one", "two", "three")] == ["completed", "later_success", "completed"]


def test_overlapping_runs_that_used_the_same_memory_do_not_raise_each_other(memory: Memory) -> None:
    things = things_to_use(memory)
    take(memory, begin("one", 0), begin("two", 1, "Bake bread"))
    take(memory, end("one", 5, memory_ids=things[:1]), end("two", 6, memory_ids=things[:1]))
    assert [quality(memory, name)[1] for name in ("one", "two")] == ["completed", "completed"]


def test_with_a_model_other_words_are_recognised_by_meaning(tmp_path: Path) -> None:
    settings = EmbedderSettings(allow_download=False)
    learning = LearningSettings()
    with Memory.open(
        tmp_path / "a", embedder_settings=settings, store_settings=SMALL, learning_settings=learning
    ) as memory:
        take(memory, whole("one", 0), whole("two", 10, "Bake a sourdough bread with a dark crust"))
        assert memory.stats().without_vector == 0
        assert quality(memory, "one") == (0.8, "completed")
        take(memory, whole("three", 20, "Please fix the race condition in the auth module"))
        assert quality(memory, "one") == (0.4, "retried")
        assert quality(memory, "two") == (0.8, "completed")
