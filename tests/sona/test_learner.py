from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields
from planted_lessons import NDIM, Topics

from sona import checkpoint
from sona.errors import ShapeError
from sona.learner import CAPACITY, REACH, Learner
from sona.lesson import Contest


def bits(learner: Learner) -> bytes:
    return checkpoint.to_bytes(learner)


def test_without_lessons_there_is_no_adaptation() -> None:
    learner = Learner(NDIM)
    assert learner.adapt(Topics().request(0)) is None
    assert learner.gate.route("any recall") == "baseline"


def test_a_used_memory_is_reached_by_a_similar_request() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, topics.lessons(30))
    adaptation = learner.adapt(topics.request(2))
    assert adaptation is not None
    reached = dict(zip(adaptation.reached.memories.tolist(), adaptation.reached.amounts.tolist(), strict=True))
    assert max(reached, key=reached.__getitem__) == 102
    assert reached[102] > 0.4


def test_of_equally_near_lessons_the_lowest_numbers_are_returned() -> None:
    learner = Learner.from_lessons(NDIM, Topics().lessons(1))
    adaptation = learner.adapt(Topics().request(0))
    assert adaptation is not None
    numbers = np.arange(10, 50)
    alike = np.where(numbers % 2, 0.75, 0.25)
    alike[-1] = 0.875
    nearest = replace_fields(adaptation, numbers=numbers, similarities=alike).nearest()
    assert nearest == [(49, 0.875), (11, 0.75), (13, 0.75)]


def test_a_query_moves_towards_the_answers_of_similar_queries() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, topics.lessons(60))
    for topic in range(6):
        adaptation = learner.adapt(topics.request(topic))
        assert adaptation is not None
        gains = topics.memories @ adaptation.direction
        assert gains[topic] == max(gains) > 0


def test_a_query_is_never_moved_further_than_the_trust_region() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, [*topics.lessons(8), *topics.lessons(200)])
    for topic in range(6):
        adaptation = learner.adapt(topics.request(topic))
        assert adaptation is not None
        assert np.linalg.norm(adaptation.direction) <= REACH + 1e-9


def test_the_order_of_lessons_does_not_change_a_bit() -> None:
    lessons = Topics().lessons(90)
    assert bits(Learner.from_lessons(NDIM, lessons)) == bits(Learner.from_lessons(NDIM, lessons[::-1]))


def test_incremental_learning_and_consolidation_equal_a_rebuild() -> None:
    topics = Topics()
    lessons = topics.lessons(60)
    taught, learning = Learner.from_lessons(NDIM, lessons), Learner(NDIM)
    for lesson in lessons:
        learning.learn(lesson)
    assert learning.credited == taught.credited
    assert learning.gate.to_bytes() == taught.gate.to_bytes()
    assert learning.baselines.to_bytes() == taught.baselines.to_bytes()
    assert learning.prior.to_bytes() == taught.prior.to_bytes()
    query = topics.request(3)
    ours, theirs = learning.adapt(query), taught.adapt(query)
    assert ours is not None
    assert theirs is not None
    assert set(ours.reached.memories.tolist()) >= {103} <= set(theirs.reached.memories.tolist())


def test_an_instant_update_of_a_consolidated_learner_is_exact_in_the_bank() -> None:
    topics = Topics()
    lessons = topics.lessons(40)
    learner = Learner.from_lessons(NDIM, lessons)
    new = topics.lesson(41, 2)
    learner.learn(new)
    anew = Learner(NDIM)
    anew.queries, anew.targets = learner.queries, learner.targets
    anew.hold(learner.exemplars.values())
    query = topics.request(2)
    np.testing.assert_allclose(learner.bank.shift(query), anew.bank.shift(query), atol=1e-6)


def test_forgetting_and_consolidating_equals_a_rebuild_without() -> None:
    lessons = Topics().lessons(80)
    gone = {3, 17, 80}
    kept = [lesson for lesson in lessons if lesson.number not in gone]
    assert bits(Learner.from_lessons(NDIM, kept)) != bits(Learner.from_lessons(NDIM, lessons))
    learner = Learner.from_lessons(NDIM, lessons)
    assert learner.forget(gone) == 3
    assert learner.forget(gone) == 0
    assert set(learner.facts) == {lesson.number for lesson in kept}
    assert learner.baselines.to_bytes() == Learner.from_lessons(NDIM, kept).baselines.to_bytes()
    assert learner.prior.to_bytes() == Learner.from_lessons(NDIM, kept).prior.to_bytes()


def test_a_memory_used_only_by_a_forgotten_run_is_no_longer_reached() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, [topics.lesson(1, 0), topics.lesson(2, 1)])
    query = topics.request(0)
    before = learner.adapt(query)
    assert before is not None
    assert 100 in before.reached.memories
    learner.forget([1])
    after = learner.adapt(query)
    assert after is not None
    assert 100 not in after.reached.memories


def test_uses_by_a_bad_run_reach_nothing_until_its_quality_is_revised() -> None:
    topics = Topics()
    lesson = topics.lesson(1, 0)
    learner = Learner.from_lessons(NDIM, [lesson, topics.lesson(2, 1)])

    def amount() -> float:
        adaptation = learner.adapt(lesson.query)
        assert adaptation is not None
        places = np.flatnonzero(adaptation.reached.memories == 100)
        return float(adaptation.reached.amounts[places].sum())

    good = amount()
    learner.learn(replace(lesson, quality=0.4))
    assert amount() == 0.0 < good
    assert learner.bank.weights.tolist() == [1.0]
    learner.learn(replace(lesson, quality=1.0))
    assert amount() == pytest.approx(good)
    assert len(learner.bank) == 2


def test_a_changed_lesson_replaces_the_former_one() -> None:
    topics = Topics()
    lesson, other = topics.lesson(1, 0), topics.lesson(1, 3)
    learner = Learner.from_lessons(NDIM, [lesson])
    learner.learn(replace(lesson, used=other.used, vectors=other.vectors))
    assert bits(Learner.from_lessons(NDIM, [replace(lesson, used=other.used, vectors=other.vectors)])) == bits(
        Learner.from_lessons(NDIM, [replace(lesson, used=other.used, vectors=other.vectors)])
    )
    adaptation = learner.adapt(lesson.query)
    assert adaptation is not None
    assert adaptation.reached.memories.tolist() == [103]


def test_a_lesson_without_credit_moves_the_baseline_and_no_query() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, [topics.lesson(number, number % 6, credit=0.0) for number in range(1, 40)])
    adaptation = learner.adapt(topics.request(0))
    assert adaptation is not None
    assert len(adaptation.reached.memories) == 0
    assert not adaptation.direction.any()
    assert learner.baselines.of("run") > 0.7
    assert learner.credited == 0


def test_the_gate_counts_a_lesson_once_over_all_revisions() -> None:
    topics = Topics()
    learner = Learner(NDIM)
    for number in range(1, 6):
        lesson = topics.lesson(number, 0, contest=Contest(1, 0))
        learner.learn(lesson)
        learner.learn(replace(lesson, quality=0.9))
        learner.learn(replace(lesson, used=(200,)))
    evidence = learner.gate.evidence()
    assert (evidence.state, evidence.credited, evidence.won) == ("trial", 5, 4)  # the first lesson preceded the trial


def test_the_gate_opens_when_the_learned_ranking_keeps_winning_and_never_by_itself() -> None:
    topics = Topics()
    winning = [topics.lesson(number, number % 6, contest=Contest(1, 0)) for number in range(1, 90)]
    assert Learner.from_lessons(NDIM, winning).gate.state == "on"
    silent = [replace(lesson, contest=None) for lesson in winning]
    assert Learner.from_lessons(NDIM, silent).gate.state == "trial"


def test_lessons_beyond_the_limit_are_condensed_and_still_have_effect() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, topics.lessons(200), capacity=40)
    assert len(learner.exemplars) == 40
    stood_for = sum(1 + len(one.others) for one in learner.exemplars.values())
    assert stood_for == 200
    adaptation = learner.adapt(topics.request(4))
    assert adaptation is not None
    best = adaptation.reached.memories[np.argmax(adaptation.reached.amounts)]
    assert best == 104


def test_a_full_learner_accepts_lessons_until_it_is_consolidated() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, topics.lessons(CAPACITY))
    for number in range(CAPACITY + 1, CAPACITY + 20):
        learner.learn(topics.lesson(number, number % 6))
    assert len(learner.bank) == CAPACITY + 19


def test_a_query_of_another_length_is_refused() -> None:
    learner = Learner.from_lessons(NDIM, Topics().lessons(5))
    with pytest.raises(ShapeError):
        learner.adapt(np.ones(NDIM + 1, dtype=np.float32))


def test_a_memory_used_for_many_requests_is_not_reached_by_an_unlike_one() -> None:
    topics = Topics()
    learner = Learner.from_lessons(NDIM, [topics.lesson(number, 0) for number in range(1, 60)])
    far = -topics.requests[0]
    adaptation = learner.adapt(far)
    assert adaptation is not None
    assert adaptation.reached.amounts.max(initial=0.0) == 0.0
    assert np.linalg.norm(adaptation.direction) == 0.0
