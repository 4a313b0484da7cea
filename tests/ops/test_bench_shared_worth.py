"""The worth of what users share, in a world of a few texts: the loop raises what helps, and the controls do not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress

from memory_agent.embedders import Embedder
from memory_agent.memory import Memory
from ops.bench import shared_worth
from ops.bench.shared_deployment import Agent, Arm, Size
from ops.bench.shared_worlds import SETTINGS, Draft, Kind, Source, Text, own_folder
from ops.bench.shared_worth import ARMS, LOOP, NO_PLACE, SHUFFLED, Measured, draw, gain, means, measure, page

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
HELPFUL = 2  # of three items of a matter: not the one that a search finds first


def made(place: Path, folder: Path, embedder: Embedder, random: np.random.Generator) -> Draft:
    """Two matters, with one owner of a memory about something else."""
    with Memory.open(own_folder(folder, "ann"), settings=SETTINGS, embedder=embedder) as memory:
        memory.remember("Lunch is at noon in the canteen")
    items, kinds = [], []
    for name, (request, *texts) in MATTERS.items():
        helps = frozenset({len(items) + HELPFUL})
        kinds.append(Kind(name, (f"Please tell me: {request}", f"Again: {request}"), f"As usual: {request}", helps))
        items += [Text(f"About the {name}", text) for text in texts]
    return Draft(("ann",), items, kinds)


SOURCE = Source("Some", "", "evidence", made)


def measured(arms: Sequence[Arm], size: Size) -> Measured:
    with Progress(disable=True) as progress:
        return measure([SOURCE], Path(), arms, size, 1, progress)


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
    ((_, loop),) = found.lived[LOOP]
    proven = [(one.helpful, one.others) for one in loop.searches if one.epoch == 4]
    assert proven == [(1.0, 0.0)] * len(MATTERS)
    ((_, off),) = found.lived["off"]
    assert {(one.helpful, one.others) for one in off.searches} == {(0.0, 0.0)}


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
    assert all(f"{arm.name} |" in text for arm in ARMS if arm.name != NO_PLACE)
    draw(found, tmp_path / "shared.png")
    assert (tmp_path / "shared.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shared_worth.main(["--data", str(tmp_path)])
    assert "has none of locomo_dev.json" in capsys.readouterr().err
