"""Test the benefit of shared items in a world of a few texts: the loop ranks helpful items higher, and the controls do
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from rich.progress import Progress

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.knowledge import Knowledge
from memory_agent.memory import Memory
from memory_agent.records.shared_requests import Caller, Report, ReportedItem
from memory_agent.settings import EmbedderSettings
from ops.bench import shared_worth
from ops.bench.shared_deployment import Agent, Arm, Deployment, Seen, Size, lived
from ops.bench.shared_worlds import (
    BOTH,
    DEADLINE_MS,
    FOUND,
    SETTINGS,
    TOP_K,
    Draft,
    Kind,
    Source,
    Text,
    own_folder,
    prepare,
)
from ops.bench.shared_worth import ALIKE, ARMS, LOOP, NO_PLACE, SHUFFLED, Measured, draw, gain, means, measure, page
from relay import SHARED_USER

SURE = Agent(reads_on=1.0, believes=1.0, mistakes=0.7, helped=1.0, misled=0.0, alone=0.4)
MATTERS = {
    "backup": (
        "Why does the nightly backup of the orders database fail?",
        "The nightly backup of the orders database fails when the disk of the replica is full",
        "The nightly backup of the orders database fails while another backup has the lock",
        "The nightly backup of the orders database fails with an expired password",
    ),
    "certificate": (
        "How is the certificate of the staging gateway renewed?",
        "The certificate of the staging gateway is renewed by the second issuer",
        "The certificate of the staging gateway is renewed by hand and the pod restarted",
        "The certificate of the staging gateway is renewed through the DNS zone",
    ),
}
HELPFUL = 2  # index among the three items of a topic; a search finds another item first


def made(place: Path, folder: Path, embedder: Embedder, random: np.random.Generator) -> Draft:
    """Return a world of two topics; one user has a memory about something else."""
    with Memory.open(own_folder(folder, "ann"), settings=SETTINGS, embedder=embedder) as memory:
        memory.remember("Lunch is at noon in the canteen")
    items, kinds = [], []
    for name, (request, *texts) in MATTERS.items():
        helps = frozenset({len(items) + HELPFUL})
        kinds.append(Kind(name, (f"Please tell me: {request}", f"Again: {request}"), f"As usual: {request}", helps))
        items += [Text(f"About the {name}", text) for text in texts]
    return Draft(("ann",), items, kinds)


SOURCE = Source("Some", "", "evidence", made)


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    with closing(open_embedder(EmbedderSettings(allow_download=False))) as opened:
        yield opened


def measured(arms: Sequence[Arm], size: Size, seeds: int = 1) -> Measured:
    with Progress(disable=True) as progress:
        return measure([SOURCE], Path(), arms, size, seeds, 1, progress)


def test_what_helps_is_proven_and_comes_first_and_shuffled_outcomes_change_less() -> None:
    arms = [
        Arm(LOOP, agent=SURE),
        Arm(SHUFFLED, agent=SURE, reports="shuffled"),
        Arm("off", agent=SURE, reports="none"),
    ]
    size = Size(users=24, requests=2, epochs=4, asked_after=(0, 4), others=2)
    found = measured(arms, size)
    before, after = (means(found.lived[LOOP], epoch) for epoch in (0, 4))
    raised = gain(after, before)
    assert raised["first"].mean > 0.4
    assert raised["success"].mean > 0.1
    assert gain(after, means(found.lived[SHUFFLED], 4))["success"].mean > 0.1
    ((*_, loop),) = found.lived[LOOP]
    proven = [(one.helpful, one.others) for one in loop.searches if one.epoch == 4]
    assert proven == [(1.0, 0.0)] * len(MATTERS)
    ((*_, off),) = found.lived["off"]
    assert {(one.helpful, one.others) for one in off.searches} == {(0.0, 0.0)}


@pytest.mark.parametrize("they", ["praise", "bury"])
def test_answers_and_searches_are_those_of_the_stores(
    they: Literal["praise", "bury"], tmp_path: Path, embedder: Embedder
) -> None:
    world = prepare(SOURCE, Path(), tmp_path, embedder)
    deployment = Deployment.open(world, Arm("keys", sybils=6, they=they), Size(), 0)
    seen = set()
    with (
        Knowledge.open(tmp_path / SHARED_USER, settings=SETTINGS, embedder=embedder) as shared,
        Memory.open(own_folder(tmp_path, "ann"), settings=SETTINGS, embedder=embedder, shared=shared) as ann,
    ):
        items = [
            ReportedItem(item_id=item, version="1", retrievals=1, uses=1, quality=float(figures.standing.is_proven))
            for item, figures in zip(world.items, deployment.figures, strict=True)
            if figures.standing.is_proven or figures.standing.is_worse(deployment.rules)
        ]
        for number in range(6):
            shared.ask(Caller(user_id=f"sybil-{number}"), Report(number=1, items=tuple(items)))
        shared.expire()
        for kind in world.kinds:
            assert deployment.released(world.searched[kind.held]) == ann.shared.search(kind.held, 2 * FOUND)
            for text in (*kind.wordings, kind.held):
                real = ann.recall(text, TOP_K, deadline_ms=DEADLINE_MS, tiers=BOTH)
                found = deployment.recalled("ann", text, real.recall_id)
                assert [one.record.id for one in found] == [one.record.id for one in real.memories]
                assert [one.shared for one in found] == [one.shared for one in real.memories]
                seen.update((one.shared.is_proven, one.shared.is_worse) for one in found if one.shared)
    assert seen == {(False, False), (they == "praise", they == "bury")}


def test_the_same_seed_gives_the_same_deployment_and_another_one_other_draws(
    tmp_path: Path, embedder: Embedder
) -> None:
    world = prepare(SOURCE, Path(), tmp_path, embedder)
    size = Size(users=12, requests=2, epochs=2, asked_after=(0, 2), others=2)
    one, again, other = (lived(world, Arm(LOOP), size, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_intervals_are_over_kinds_and_over_seeds() -> None:
    """Seeds may differ when all kinds agree, and kinds may differ when all seeds agree."""
    nothing = np.zeros(len(Seen._fields))
    cells = [("Some", f"kind {kind}", seed) for kind in range(8) for seed in range(8)]
    before = dict.fromkeys(cells, nothing)
    same = gain(dict.fromkeys(cells, nothing + 0.5), before)["success"]
    by_seed = gain({cell: nothing + (cell[2] % 2) for cell in cells}, before)["success"]
    by_kind = gain({cell: nothing + (int(cell[1][-1]) % 2) for cell in cells}, before)["success"]
    assert (same.low, same.mean, same.high) == (0.5, 0.5, 0.5)
    for found in (by_seed, by_kind):
        assert found.mean == 0.5
        assert (found.low or 0.0) < 0.3
        assert (found.high or 0.0) > 0.7


@pytest.mark.parametrize("helps", [[], [True], [False, True], [False, False, True, False, True]])
def test_the_success_of_an_answer_is_that_of_many_runs(helps: list[bool]) -> None:
    agent, random = Agent(), np.random.default_rng(1)
    ends = []
    for _ in range(20_000):
        place = agent.chosen(helps, random)
        ends.append(agent.alone if place is None else agent.helped if helps[place] else agent.misled)
    assert agent.succeeds(helps) == pytest.approx(np.mean(ends), abs=0.005)


def test_the_page_has_every_arm_and_says_no_where_nothing_was_gained(tmp_path: Path) -> None:
    found = measured(ARMS, Size(users=4, requests=1, epochs=2, asked_after=(0, 1, 2), others=1))
    text = page(found, {"cores": "2"}, datetime(2026, 2, 16, tzinfo=UTC))
    claims = text.partition("| claim |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(claims) >= 8
    assert all(line.endswith("| NO |") for line in claims), "four users prove nothing"
    assert all(f"{arm.name} |" in text for arm in ARMS if arm.name != NO_PLACE and not arm.name.endswith(ALIKE))
    draw(found, tmp_path / "shared.png")
    assert (tmp_path / "shared.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shared_worth.main(["--data", str(tmp_path)])
    assert "contains none of locomo_dev.json" in capsys.readouterr().err
