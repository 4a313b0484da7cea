from __future__ import annotations

import pytest
from planted_lessons import NDIM, Topics

from sona import checkpoint
from sona.errors import DamagedStateError
from sona.learner import Learner
from sona.lesson import Comparison, Contest


def taught(count: int = 70) -> Learner:
    topics = Topics()
    contests = [Contest(1, 0), Comparison(2.5, 0.25), None]
    return Learner.from_lessons(
        NDIM,
        [topics.lesson(number, number % 6, (number % 3) / 2, contest=contests[number % 3]) for number in range(count)],
    )


@pytest.mark.parametrize("count", [0, 3, 70])
def test_a_learner_round_trips_bit_for_bit(count: int) -> None:
    learner = taught(count)
    again = checkpoint.from_bytes(checkpoint.to_bytes(learner))
    assert checkpoint.to_bytes(again) == checkpoint.to_bytes(learner)
    for topic in range(6):
        query = Topics(seed=5).request(topic)
        ours, theirs = learner.adapt(query), again.adapt(query)
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.direction.tobytes() == theirs.direction.tobytes()
            assert ours.reached.amounts.tobytes() == theirs.reached.amounts.tobytes()


def test_a_condensed_learner_round_trips() -> None:
    learner = Learner.from_lessons(NDIM, Topics().lessons(120), capacity=30)
    again = checkpoint.from_bytes(checkpoint.to_bytes(learner))
    query = Topics(seed=5).request(1)
    ours, theirs = learner.adapt(query), again.adapt(query)
    assert ours is not None
    assert theirs is not None
    assert ours.direction.tobytes() == theirs.direction.tobytes()


def test_every_flipped_bit_is_detected() -> None:
    data = checkpoint.to_bytes(taught(5))
    for place in range(0, len(data), 37):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(DamagedStateError):
            checkpoint.from_bytes(bytes(damaged))


@pytest.mark.parametrize("length", [0, 3, 10, 100])
def test_a_torn_checkpoint_is_detected(length: int) -> None:
    with pytest.raises(DamagedStateError):
        checkpoint.from_bytes(checkpoint.to_bytes(taught(5))[:length])


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_of_a_former_version_is_sound_but_has_to_be_learned_again(version: int) -> None:
    data = bytearray(checkpoint.to_bytes(taught(5)))
    assert not checkpoint.is_former(bytes(data))
    data[5] = version
    assert checkpoint.is_former(bytes(data))
    assert checkpoint.whole_body(bytes(data))
    with pytest.raises(DamagedStateError, match="older version"):
        checkpoint.from_bytes(bytes(data))


def test_a_checkpoint_of_another_version_is_refused() -> None:
    data = bytearray(checkpoint.to_bytes(taught(5)))
    data[5] += 1
    with pytest.raises(DamagedStateError, match="version"):
        checkpoint.from_bytes(bytes(data))
