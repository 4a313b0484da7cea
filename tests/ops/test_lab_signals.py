"""Test how often the simulated signals are right, and that the controls are not better than chance."""

from __future__ import annotations

import numpy as np
import pytest

from memory_agent.evaluation import Place
from ops.lab.arms import (
    APPROVED,
    FAILED,
    SIGNALS,
    WRONG_CITATIONS,
    WRONG_VERDICTS,
    Claim,
    Signal,
    claim_for,
)

SHOWN: list[Place] = [("a",), ("b",), ("c", "also c"), ("d",), ("e",)]
MANY = 4_000


def said(signal: Signal, relevant: set[str], times: int = 1, others: tuple[str, ...] = ("z",)) -> list[Claim]:
    random = np.random.default_rng(7)
    return [claim_for(signal, sorted(relevant), others, SHOWN, random) for _ in range(times)]


def test_the_oracle_names_evidence_that_was_not_shown_too() -> None:
    assert said("oracle", {"b", "absent"}) == [Claim(("absent", "b"), APPROVED)]


def test_the_shuffled_oracle_names_the_evidence_of_another_question() -> None:
    assert said("shuffled oracle", {"b"}, others=("x", "y")) == [Claim(("x", "y"), APPROVED)]


def test_citations_name_shown_memories_at_the_given_precision() -> None:
    cited = [account.used for account in said("cite", {"b", "absent"}, MANY)]
    assert {len(used) for used in cited} == {1}
    assert {used[0] for used in cited} == {"a", "b", "c", "d", "e"}
    assert np.mean([used == ("b",) for used in cited]) == pytest.approx(1 - WRONG_CITATIONS, abs=0.03)


def test_a_memory_that_stands_for_the_evidence_is_cited_by_its_own_item() -> None:
    cited = [account.used[0] for account in said("cite", {"also c"}, MANY)]
    assert cited.count("c") / MANY == pytest.approx(1 - WRONG_CITATIONS, abs=0.03)
    assert "also c" not in cited


def test_a_run_that_was_shown_no_evidence_cites_nothing_and_mostly_fails() -> None:
    accounts = said("cite", {"absent"}, MANY)
    assert {account.used for account in accounts} == {()}
    failed = np.mean([account.quality == FAILED for account in accounts])
    assert failed == pytest.approx(1 - WRONG_VERDICTS, abs=0.03)


@pytest.mark.parametrize("signal", ["cite", "list", "shuffled cite"])
def test_a_tenth_of_the_verdicts_is_wrong(signal: Signal) -> None:
    approved = np.mean([account.quality == APPROVED for account in said(signal, {"b"}, MANY)])
    assert approved == pytest.approx(1 - WRONG_VERDICTS, abs=0.03)


def test_a_list_names_everything_that_was_shown() -> None:
    assert said("list", {"b"})[0].used == ("a", "b", "c", "d", "e")


def test_shuffled_citations_are_as_many_and_no_better_than_chance() -> None:
    cited = [account.used for account in said("shuffled cite", {"b", "d"}, MANY)]
    assert {len(set(used)) for used in cited} == {2}
    assert np.mean(["b" in used for used in cited]) == pytest.approx(2 / len(SHOWN), abs=0.03)


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_same_seed_says_the_same(signal: Signal) -> None:
    assert said(signal, {"b", "d"}, 50) == said(signal, {"b", "d"}, 50)
