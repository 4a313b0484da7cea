"""The plane keeps neighbouring vectors together, and existing points do not move when points are added."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from memory_agent.memory.projection import arrange, explained

Floats = npt.NDArray[np.float32]

TOPICS, EACH, NDIM = 12, 30, 64


def topics(seed: int = 0) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Unit vectors around `TOPICS` directions, and the topic of each."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(TOPICS, NDIM))
    labels = np.repeat(np.arange(TOPICS), EACH)
    vectors = centres[labels] + 0.8 * random.normal(size=(len(labels), NDIM))
    unit: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit, labels


def unplaced(count: int) -> Floats:
    return np.full((count, 2), np.nan, dtype=np.float32)


def near(points: Floats, k: int = 10) -> npt.NDArray[np.int64]:
    distances = np.square(points[:, None] - points[None]).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest: npt.NDArray[np.int64] = np.argsort(distances, axis=1)[:, :k]
    return nearest


def test_points_of_a_topic_are_near_each_other_where_two_principal_components_mix_them() -> None:
    vectors, labels = topics()
    places = arrange(vectors, unplaced(len(vectors)))
    assert (labels[near(places)] == labels[:, None]).mean() > 0.95
    centred = vectors - vectors.mean(axis=0)
    components = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    assert (labels[near(components)] == labels[:, None]).mean() < 0.8


def test_equal_vectors_give_equal_places_and_the_first_axis_a_fixed_sign() -> None:
    vectors, _ = topics()
    places = arrange(vectors, unplaced(len(vectors)))
    assert (arrange(vectors.copy(), unplaced(len(vectors))) == places).all()


def test_points_stay_and_a_new_one_comes_to_its_neighbours() -> None:
    vectors, labels = topics()
    is_new = np.arange(len(vectors)) % 20 == 7
    former = unplaced(len(vectors))
    former[~is_new] = arrange(vectors[~is_new], unplaced(int((~is_new).sum())))
    places = arrange(vectors, former)
    moved = np.linalg.norm((places - former)[~is_new], axis=1)
    assert np.quantile(moved, 0.9) < 0.2 * former[~is_new].std()
    assert (labels[near(places)][is_new] == labels[is_new][:, None]).mean() > 0.9


def test_former_places_of_a_few_points_are_ignored() -> None:
    vectors, _ = topics()
    former = unplaced(len(vectors))
    former[:5] = 1e6
    assert (arrange(vectors, former) == arrange(vectors, unplaced(len(vectors)))).all()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 11, 12])
def test_few_points(count: int) -> None:
    vectors = topics()[0][:count]
    places = arrange(vectors, unplaced(count))
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) == count
    assert 0.0 <= explained(vectors, places) <= 1.0


def test_equal_vectors_and_vectors_of_one_dimension_have_finite_places() -> None:
    for vectors in (np.tile(topics()[0][:1], (30, 1)), np.ones((30, 1), dtype=np.float32)):
        places = arrange(vectors, unplaced(30))
        assert np.isfinite(places).all()
        assert explained(vectors, places) == 0.0


def test_the_explained_share_of_the_principal_components_is_that_of_their_variance() -> None:
    vectors, _ = topics()
    centred = vectors - vectors.mean(axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    share = np.square(singular[:2]).sum() / np.square(singular).sum()
    assert explained(vectors, centred @ axes[:2].T) == pytest.approx(share, rel=1e-3)


def test_wide_vectors_are_neither_copied_nor_multiplied_with_each_other() -> None:
    vectors = np.random.default_rng(0).normal(size=(1500, 2000)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    tracemalloc.start()
    try:
        places = arrange(vectors, unplaced(1500))
        explained(vectors, places)
        assert tracemalloc.get_traced_memory()[1] < vectors.nbytes
    finally:
        tracemalloc.stop()
    assert np.isfinite(places).all()
