"""Test the adapter: identity at first, gradients against finite differences, norm cap, determinism, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sona.elastic_weights import ElasticWeights
from sona.errors import DamagedStateError, ShapeError
from sona.lesson import Array
from sona.listwise import Example, contrast, replayed
from sona.micro_lora import MicroLora

NDIM = 32


def unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def project(seed: int, shared: Array, count: int = 60) -> list[Example]:
    """Return examples of one topic; their answers share a hidden direction and are not the nearest memories."""
    rng = np.random.default_rng(seed)
    topic, hidden = unit(shared + 0.6 * unit(rng.normal(size=NDIM))), unit(rng.normal(size=NDIM))
    examples = []
    for _ in range(count):
        x = unit(topic + 0.5 * unit(rng.normal(size=NDIM)))
        answer = unit(0.5 * x + 0.4 * hidden + 0.25 * unit(rng.normal(size=NDIM)))
        examples.append(contrast(x, answer[None], [1.0], unit(0.6 * x + 0.5 * unit(rng.normal(size=(20, NDIM))))))
    return examples


def some(seed: int = 0, count: int = 60) -> list[Example]:
    return project(seed, unit(np.random.default_rng(seed + 1).normal(size=NDIM)), count)


def share_right(adapter: MicroLora, examples: Sequence[Example]) -> float:
    return float(np.mean([int((one.candidates @ adapter.adapt(one.x)).argmax()) == 0 for one in examples]))


def walk(adapter: MicroLora, examples: Sequence[Example], old: Sequence[Example] = (), replay: bool = True) -> None:
    """Take one step per example, as when runs end, and replay earlier examples."""
    for place, new in enumerate(examples):
        seen = [*old, *examples[:place]]
        adapter.step([new, *(seen[row] for row in replayed(len(seen), place))] if replay else [new])


def with_parameters(parameters: Array) -> MicroLora:
    """Return an adapter with these parameters, restored from a saved state."""
    saved = msgspec.msgpack.decode(MicroLora(NDIM).to_bytes())
    saved[2] = parameters.tobytes()
    return MicroLora.from_bytes(msgspec.msgpack.encode(saved), NDIM)


def test_a_new_adapter_is_the_identity_bit_for_bit() -> None:
    adapter = MicroLora(NDIM)
    requests = np.random.default_rng(0).normal(size=(20, NDIM))  # not normalised; must stay unchanged
    assert all(adapter.adapt(x).tobytes() == x.tobytes() for x in requests)
    narrow = requests[0].astype(np.float32)
    assert (adapter.adapt(narrow) == narrow).all()
    assert adapter.spectral_norm == 0.0


def test_the_gradients_are_the_slopes_of_each_examples_own_loss() -> None:
    examples, adapter = some(seed=2, count=4), MicroLora(NDIM)
    walk(adapter, some(seed=3, count=5))
    heavier = [
        Example(one.x, one.candidates, one.target, weight) for one, weight in zip(examples, (1, 2, 0.5, 0), strict=True)
    ]
    gradients, at = adapter.gradients(heavier), adapter.parameters
    rng = np.random.default_rng(1)
    for direction in rng.normal(size=(30, at.size)):
        ahead, behind = (with_parameters(at + side * 1e-6 * direction).loss(examples) for side in (1, -1))
        assert np.allclose(gradients @ direction, (ahead - behind) / 2e-6 * [1, 2, 0.5, 0], rtol=1e-4, atol=1e-5)
    assert abs(gradients[:3]).max() > 0.1


def test_a_step_is_gradient_descent_on_the_mean_loss_of_its_examples() -> None:
    examples, adapter = some(seed=4, count=6), MicroLora(NDIM)
    adapter.step(examples)
    before, slope = adapter.parameters, adapter.gradients(examples).mean(axis=0)
    adapter.step(examples)
    assert adapter.spectral_norm < 1.0  # so the cap did not change the step
    assert np.allclose(adapter.parameters, before - 0.05 * slope, atol=1e-12)


def test_the_first_step_on_the_product_is_the_closed_form_gradient_cut_to_rank_two() -> None:
    examples, adapter = some(seed=5, count=9), MicroLora(NDIM)
    x = np.array([one.x for one in examples])
    pulls = np.zeros((9, NDIM))
    for row, one in enumerate(examples):
        chance = np.exp(one.candidates @ one.x / 0.1)
        by_moved = (chance / chance.sum() - one.target) @ one.candidates / 0.1
        pulls[row] = by_moved - (by_moved @ one.x) * one.x
    left, sizes, right = np.linalg.svd(x.T @ pulls / 9)
    adapter.step(examples)
    down = adapter.parameters[: 2 * NDIM].reshape(NDIM, 2)
    up = adapter.parameters[2 * NDIM :].reshape(2, NDIM)
    assert np.allclose(down @ up, -0.05 * (left[:, :2] * sizes[:2]) @ right[:2], atol=1e-9)


def test_training_generalises_to_held_out_requests() -> None:
    examples, adapter = some(seed=6), MicroLora(NDIM)
    before = share_right(adapter, examples[40:])
    walk(adapter, examples[:40])
    assert before < 0.2
    assert share_right(adapter, examples[40:]) > 0.8


def test_training_lowers_the_loss_further_than_single_steps() -> None:
    examples, adapter = some(seed=7), MicroLora(NDIM)
    walk(adapter, examples[:3])
    before = adapter.loss(examples).mean()
    adapter.train(examples)
    assert adapter.loss(examples).mean() < 0.8 * before


def test_a_single_example_initialises_both_directions() -> None:
    adapter = MicroLora(NDIM)
    adapter.step(some(seed=8, count=1))
    walk(adapter, some(seed=9, count=20))
    down, up = adapter.parameters[: 2 * NDIM].reshape(NDIM, 2), adapter.parameters[2 * NDIM :].reshape(2, NDIM)
    assert np.linalg.matrix_rank(down @ up, tol=1e-6) == 2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1.0, 30.0, 1e4]))
def test_no_request_is_ever_stretched_by_more_than_the_cap(seed: int, weight: float) -> None:
    adapter = MicroLora(NDIM)
    for one in some(seed, count=8):
        adapter.step([Example(one.x, one.candidates, one.target, weight)])
        down, up = adapter.parameters[: 2 * NDIM].reshape(NDIM, 2), adapter.parameters[2 * NDIM :].reshape(2, NDIM)
        exact = float(np.linalg.norm(down @ up, 2))
        assert adapter.spectral_norm == pytest.approx(exact, rel=1e-6, abs=1e-9)
        assert exact <= 1.0 + 1e-9
    assert weight < 1e4 or exact > 0.99  # so the cap was reached


def test_an_adapted_request_has_unit_length() -> None:
    examples, adapter = some(seed=10), MicroLora(NDIM)
    walk(adapter, examples)
    assert all(np.linalg.norm(adapter.adapt(one.x)) == pytest.approx(1.0) for one in examples)


def test_the_seed_determines_the_parameters_bit_for_bit() -> None:
    states = []
    for seed in (1, 1, 2):
        adapter = MicroLora(NDIM, seed=seed)
        walk(adapter, some(seed=11, count=12))
        adapter.train(some(seed=11, count=40))
        states.append(adapter.parameters.tobytes())
    assert states[0] == states[1]
    assert states[0] != states[2]


def test_the_state_round_trips_bit_for_bit_and_trains_on_the_same() -> None:
    examples, adapter = some(seed=12), MicroLora(NDIM, seed=5)
    adapter.train(examples)
    restored = MicroLora.from_bytes(adapter.to_bytes(), NDIM)
    for one in (adapter, restored):
        walk(one, examples[:5])
        one.train(examples[:20])
    assert restored.to_bytes() == adapter.to_bytes()


@pytest.mark.parametrize("ndim", [NDIM - 1, NDIM + 1])
def test_a_state_of_another_shape_is_refused(ndim: int) -> None:
    with pytest.raises(DamagedStateError):
        MicroLora.from_bytes(MicroLora(NDIM).to_bytes(), ndim)


def test_a_damaged_state_is_refused() -> None:
    data = MicroLora(NDIM).to_bytes()
    saved = msgspec.msgpack.decode(data)
    holes = np.full(4 * NDIM, np.nan).tobytes()
    for place, value in ((0, 2), (2, holes), (3, holes), (3, np.full(4 * NDIM, -1.0).tobytes())):
        damaged = msgspec.msgpack.encode([value if at == place else part for at, part in enumerate(saved)])
        with pytest.raises(DamagedStateError):
            MicroLora.from_bytes(damaged, NDIM)
    for cut in (b"", data[:-1], b"nonsense"):
        with pytest.raises(DamagedStateError):
            MicroLora.from_bytes(cut, NDIM)


def after_two_projects(seed: int, strength: float, replay: bool) -> tuple[float, float]:
    """Return the accuracy on projects A and B after learning A and then B. The answers of B contradict those of A."""
    shared = unit(np.random.default_rng(seed).normal(size=NDIM))
    first, second = project(2 * seed + 1, shared), project(2 * seed + 2, shared)
    adapter = MicroLora(NDIM, ElasticWeights(4 * NDIM, strength))
    walk(adapter, first[:40], replay=replay)
    adapter.train(first[:40])
    assert share_right(adapter, first[40:]) > 0.9
    for _ in range(3):
        walk(adapter, second[:40], old=first[:40], replay=replay)
    adapter.train([*second[:40], *(first[:40] if replay else [])])
    return share_right(adapter, first[40:]), share_right(adapter, second[40:])


def test_replay_and_ewc_keep_an_old_project_that_a_new_one_would_wipe_out() -> None:
    bare = np.mean([after_two_projects(seed, strength=0.0, replay=False) for seed in range(3)], axis=0)
    ewc = np.mean([after_two_projects(seed, strength=100.0, replay=False) for seed in range(3)], axis=0)
    both = np.mean([after_two_projects(seed, strength=10.0, replay=True) for seed in range(3)], axis=0)
    assert bare[0] < 0.2  # all but forgotten
    assert bare[1] > 0.9
    assert ewc[0] > bare[0] + 0.4  # without replay
    assert both[0] > 0.85
    assert both[1] > 0.8


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_an_example_that_is_not_finite_is_skipped(hole: float) -> None:
    good = some(seed=13, count=4)
    gap = np.where(np.arange(NDIM) == 1, hole, 0.0)
    broken = [
        Example(good[0].x + gap, good[0].candidates, good[0].target),
        Example(good[0].x, good[0].candidates + gap, good[0].target),
        Example(good[0].x, good[0].candidates, good[0].target, weight=hole),
    ]
    adapter, other = MicroLora(NDIM), MicroLora(NDIM)
    assert not adapter.step(broken)
    assert not adapter.step([])
    assert adapter.step([*broken, *good])
    assert other.step(good)
    assert adapter.parameters.tobytes() == other.parameters.tobytes()
    adapter.train([*broken, *good])
    assert np.isfinite(adapter.parameters).all()
    assert np.isfinite(adapter.ewc.importance).all()
    assert adapter.ewc.importance.any()
    assert (adapter.adapt(good[0].x + gap)[0] == good[0].x[0]).all()


WRONG: dict[str, Callable[[], object]] = {
    "adapt": lambda: MicroLora(NDIM).adapt(np.zeros(NDIM - 1)),
    "step": lambda: MicroLora(NDIM + 1).step(some(count=1)),
    "study": lambda: MicroLora(NDIM + 1).train(some(count=1)),
    "ewc": lambda: MicroLora(NDIM, ElasticWeights(NDIM)),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_shape_is_refused(case: str) -> None:
    with pytest.raises(ShapeError):
        WRONG[case]()
