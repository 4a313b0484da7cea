"""Test the simulation of new users: its uses, its file, and the runs until the real gate opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_agent.settings import EmbedderSettings, Settings
from ops.lab.airline import RecordedRun
from ops.lab.first_week import USES, Ask, Life, Uses, World, live, opened_at, read_lives, simulate, summarise, worlds_of

THINGS = ("kiln", "cello", "parser", "gateway", "ledger", "fjord", "oven", "printer", "compiler", "garden")
PROVED = Ask(size=4, needed=(3,), learned=(0,), used=(3,), ranks=(2, 3, 4, 1), boosts=(0, 0, 0, 80), recurs=True)
IDLE = Ask(size=4, needed=(3,), learned=(3,), used=(0,), recurs=True)


def run(thing: str, task: int, trial: int) -> RecordedRun:
    steps = [
        f"In week {trial}, look up the {thing}: its warranty ended in spring {trial}",
        f"Test it {trial} times, after the repair of the {thing} by a change of its fuse",
        f"By week {trial}, the customer agrees to the repair of the {thing}",
    ]
    return RecordedRun(
        task=task,
        trial=trial,
        succeeded=trial % 2 == 0,
        request=f"My {thing} is broken again, can you help me for the {('first', 'second')[trial % 2]} time?",
        steps=tuple(("worker.report.received", step) for step in steps),
        ending=f"In trial {trial}, the fuse of the {thing} was changed.",
    )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    runs = tuple(run(thing, task, trial) for task, thing in enumerate(THINGS) for trial in range(4))
    settings = Settings(embedder=EmbedderSettings(allow_download=False))
    worlds = worlds_of({"airline": runs}, 1, settings)
    yield next(worlds)
    worlds.close()


def life(*asks: Ask, uses: Uses = "needed") -> Life:
    return Life("airline", 0, 0, uses, asks)


def test_topics_need_memories_of_their_own_task_that_their_requests_find(world: World) -> None:
    assert len(world.topics) == len(THINGS)
    for topic, thing in zip(world.topics, THINGS, strict=True):
        assert 1 <= len(topic.needed) <= 2
        assert all(thing in record.text for record in world.memory.get(list(topic.needed)))
        assert {id for text, _ in topic.requests for id in world.answer(text).ids} >= set(topic.needed)


def test_users_are_simulated_once_and_the_file_is_continued(world: World, tmp_path: Path) -> None:
    file = tmp_path / "lives.jsonl"
    simulate(world, 2, 6, file, lambda *_: None)
    whole = file.read_bytes()
    lives = read_lives(file)
    assert [(one.uses, one.user) for one in lives] == [(uses, user) for uses in USES for user in range(2)]
    assert all(len(one.asks) == 6 for one in lives)
    file.write_bytes(whole[: len(whole) // 2])
    simulate(world, 2, 6, file, lambda *_: None)
    assert file.read_bytes() == whole


def test_runs_use_what_they_need_with_mistakes_and_without_a_gain_as_many_others(world: World) -> None:
    world.places = [(0, 2)]
    needed, equal = (live(world, 1, uses, 40) for uses in ("needed", "equal"))
    right = [place in ask.used for ask in needed.asks for place in ask.needed]
    assert 0.6 < sum(right) / len(right) < 0.95
    compared = [ask for ask in (*needed.asks, *equal.asks) if ask.ranks]
    assert compared
    assert all(sorted(ask.ranks) != list(ask.ranks) or any(ask.boosts) for ask in compared)
    assert all(ask.used == (0, 2) for ask in live(world, 1, "places", 5).asks if ask.size > 2)
    assert all(ask.used == (0, 1) for ask in live(world, 1, "drift", 5).asks)
    assert all(len(ask.used) == 2 for ask in live(world, 1, "random", 5).asks)


def test_the_gate_opens_for_a_user_whose_past_uses_predict_the_next() -> None:
    at = opened_at(life(*[PROVED] * 10))
    assert at is not None
    assert 3 <= at <= 6
    assert opened_at(life(*[IDLE] * 30)) is None


def test_a_summary_counts_users_for_whom_the_gate_does_not_open() -> None:
    lives = [life(*[PROVED] * 10), life(*[IDLE] * 10), life(*[IDLE] * 10, uses="random")]
    airline, everything, random, _ = summarise(lives)
    assert (airline.source, everything.source, airline.users, airline.opened) == ("airline", "all", 2, 0.5)
    assert airline.quarter == airline.median == opened_at(lives[0])
    assert airline.three_quarters is airline.ninth is None
    assert airline.low < 0.5 < airline.high
    assert (random.uses, random.opened, random.median) == ("random", 0.0, None)
