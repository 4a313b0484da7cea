"""Test the figures of the benchmark `moves`: requests affected by a move, first answers after a loss, and the rows."""

from __future__ import annotations

from typing import Any

import pytest

from ops.bench.moves import Answered, Kill, Move, _killed, _met, _requests
from ops.bench.rows import moves_rows


def answered(user: str, began_s: float, ended_s: float, refusal: str = "") -> Answered:
    return Answered(user, began_s, ended_s, refusal, is_degraded=False)


def test_requests_in_progress_until_the_first_answer_are_affected_by_the_move() -> None:
    before, waited, came_later = answered("a", 1, 2), answered("a", 3, 5), answered("a", 4.5, 5.5)
    after, of_another = answered("a", 6, 7), answered("b", 3, 5)
    assert _met([before, waited, came_later, after, of_another], [Move("a", "one", 4)]) == [waited, came_later]
    assert _met([before], [Move("a", "one", 4)]) == []


def test_the_first_answer_is_the_first_success_after_the_loss_was_detected() -> None:
    kill = Kill(users=["a", "b"], killed_s=10, detected_s=13)
    requests = [answered("a", 9, 10.5), answered("a", 10, 13.5, "host_died"), answered("a", 10, 14)]
    figures = _killed([kill], [*requests, answered("b", 11, 15.5), answered("b", 11, 18)])
    assert figures["detected_s"]["median"] == 3
    assert (figures["first_answer_s"]["least"], figures["first_answer_s"]["most"]) == (1, 2.5)


def figures(took_s: float, refusal: str, answer_s: float, lost: int) -> dict[str, Any]:
    some = _requests([answered("a", 0, took_s, refusal)])
    kill = Kill(users=["a"], killed_s=0, detected_s=3)
    return {
        "memories": 10_000,
        "users": 1,
        "quiet": some,
        "moving": some | {"moves": 1, "met": some},
        "target_p99_ms": 250.0,
        "killed": _killed([kill], [answered("a", 0, 3 + answer_s)]),
        "target_recovery_s": 3.0,
        "acknowledged": 5,
        "lost": lost,
    }


@pytest.mark.parametrize(
    ("took_s", "refusal", "answer_s", "lost", "verdicts"),
    [
        (0.2, "", 2.5, 0, [True, None, True]),
        (0.3, "", 2.5, 1, [False, None, False]),
        (0.2, "host_died", 3.5, 0, [False, None, False]),
    ],
)
def test_rows_state_whether_the_targets_were_reached(
    took_s: float, refusal: str, answer_s: float, lost: int, verdicts: list[bool | None]
) -> None:
    assert [row.reached for row in moves_rows(figures(took_s, refusal, answer_s, lost))] == verdicts
