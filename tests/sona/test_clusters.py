"""Test the clusters: planted clusters are found, seeds are drawn by squared distance, and order does not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sona.clusters import Clusters, _plus_plus, average_linkage, kmeans
from sona.errors import ShapeError
from sona.lesson import Array

NDIM = 24
SIZES = (3, 5, 8, 13, 21)


def unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def units(count: int, seed: int, ndim: int = NDIM) -> Array:
    return unit(np.random.default_rng(seed).normal(size=(count, ndim)))


def planted(seed: int, noise: float = 0.5) -> tuple[Array, Array]:
    """Return shuffled points in clusters of `SIZES`, and the cluster of each."""
    rng = np.random.default_rng(seed)
    centres, truth = np.eye(NDIM)[: len(SIZES)], np.repeat(np.arange(len(SIZES)), SIZES)
    order = rng.permutation(len(truth))
    return unit(centres[truth] + noise * units(len(truth), seed + 1))[order], truth[order]


def same_partition(found: Array, truth: Array) -> bool:
    pairs = set(zip(found.tolist(), truth.tolist(), strict=True))
    return len(pairs) == len(set(found.tolist())) == len(set(truth.tolist()))


def test_kmeans_finds_planted_clusters() -> None:
    tight = [planted(seed, noise=0.1) for seed in range(40)]
    found = sum(same_partition(kmeans(x, len(SIZES), seed=0).assignment, y) for x, y in tight)
    assert found >= 38  # measured: 40; 33 if seeds are drawn by unsquared distance, 23 if drawn uniformly


@pytest.mark.parametrize("threshold", [0.3, 0.45, 0.6])
def test_average_linkage_finds_planted_clusters(threshold: float) -> None:
    assert all(same_partition(average_linkage(x, threshold).assignment, y) for x, y in map(planted, range(20)))


def test_seeds_are_drawn_by_weight_and_squared_distance() -> None:
    angles, weights = np.array([0.0, 0.55, 1.2]), np.array([5.0, 2.0, 1.0])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    draws = Counter[tuple[int, ...]]()
    rng = np.random.default_rng(0)
    for _ in range(4000):
        draws[tuple(int((x @ seed).argmax()) for seed in _plus_plus(x, weights, 2, rng))] += 1
    squared = 2.0 - 2.0 * x @ x.T
    for first, second in ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)):
        chance = weights[first] / 8 * weights[second] * squared[first, second] / (weights @ squared[first])
        assert draws[first, second] / 4000 == pytest.approx(chance, abs=0.03)


def test_a_heavy_point_draws_the_centre_to_itself() -> None:
    x = unit(np.array([[1.0, 0.0], [1.0, 0.8]]))
    found = kmeans(x, 1, seed=0, weights=[9.0, 1.0])
    assert np.allclose(found.centres[0], unit(9 * x[0] + x[1]))
    assert found.medoids.tolist() == [0]
    assert kmeans(x, 1, seed=0, weights=[1.0, 9.0]).medoids.tolist() == [1]


def check(found: Clusters, x: Array) -> None:
    """Assert the invariants of any clustering: labels, medoids, centres."""
    labels = found.assignment
    firsts = [int(np.flatnonzero(labels == name)[0]) for name in range(len(found.medoids))]
    assert firsts == sorted(firsts)
    assert set(labels.tolist()) == set(range(len(found.medoids)))
    for name, medoid in enumerate(found.medoids.tolist()):
        rows = found.members(name)
        distances = (1.0 - x[rows] @ x[rows].T).sum(axis=1)
        assert medoid in rows
        assert distances[rows.tolist().index(medoid)] <= distances.min() + 1e-9
        assert np.allclose(found.centres[name], unit(x[rows].sum(axis=0)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 500))
def test_kmeans_returns_k_clusters_or_one_per_point(count: int, k: int, seed: int) -> None:
    x = units(count, seed, ndim=3)
    found = kmeans(x, k, seed)
    assert len(found.medoids) == min(k, count)
    check(found, x)


def test_equal_points_count_as_one_even_in_single_precision() -> None:
    x = np.repeat(units(3, seed=1), 10, axis=0).astype(np.float32)
    found = kmeans(x, 8, seed=2)
    assert len(found.medoids) == 3
    assert same_partition(found.assignment, np.repeat(np.arange(3), 10))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.floats(-0.2, 0.95), st.integers(0, 500))
def test_the_threshold_holds_within_clusters_and_not_between_them(count: int, threshold: float, seed: int) -> None:
    x = units(count, seed, ndim=4)
    found = average_linkage(x, threshold)
    check(found, x)
    cosines = x @ x.T
    rows = [found.members(name) for name in range(len(found.medoids))]
    between = [cosines[np.ix_(a, b)].mean() for at, a in enumerate(rows) for b in rows[:at]]
    assert max(between, default=-1.0) < threshold + 1e-9


def test_an_outlier_is_a_cluster_of_its_own() -> None:
    x, _ = planted(seed=3)
    with_stray = np.vstack([np.eye(NDIM)[-1:], x])
    found = average_linkage(with_stray, 0.45)
    assert found.members(0).tolist() == [0]
    assert len(found.medoids) == len(SIZES) + 1


def test_clusters_do_not_depend_on_the_order_of_the_points() -> None:
    x, _ = planted(seed=4, noise=0.9)
    order = np.random.default_rng(0).permutation(len(x))
    assert same_partition(average_linkage(x[order], 0.4).assignment, average_linkage(x, 0.4).assignment[order])


def test_a_weight_counts_as_that_many_equal_points() -> None:
    x, counts = units(12, seed=5, ndim=3), np.array([1, 2, 3] * 4)
    whole = average_linkage(np.repeat(x, counts, axis=0), 0.7)
    assert same_partition(average_linkage(x, 0.7, counts).assignment, whole.assignment[np.cumsum(counts) - 1])
    assert len(average_linkage(x, 0.7, counts).medoids) > 1


def test_a_seed_determines_the_draw_bit_for_bit() -> None:
    x = units(200, seed=6)
    first, again = kmeans(x, 9, seed=1), kmeans(x, 9, seed=1)
    assert first.assignment.tobytes() == again.assignment.tobytes()
    assert first.centres.tobytes() == again.centres.tobytes()
    assert any(kmeans(x, 9, seed=seed).assignment.tobytes() != first.assignment.tobytes() for seed in range(2, 5))


@pytest.mark.parametrize("grouped", [lambda x, w: kmeans(x, 3, 0, w), lambda x, w: average_linkage(x, 0.5, w)])
def test_points_not_finite_or_without_weight_are_in_no_cluster(grouped: Callable[[Array, Array], Clusters]) -> None:
    x, weights = units(8, seed=7), np.ones(8)
    x[1, 2], x[3, 0], x[4], weights[6], weights[7] = np.nan, np.inf, 0.0, 0.0, np.nan
    found, kept = grouped(x, weights), [0, 2, 5]
    alone = grouped(x[kept], weights[kept])
    assert np.flatnonzero(found.assignment < 0).tolist() == [1, 3, 4, 6, 7]
    assert found.assignment[kept].tolist() == alone.assignment.tolist()
    assert found.medoids.tolist() == [kept[row] for row in alone.medoids]


@pytest.mark.parametrize(
    "grouped", [lambda x: kmeans(x, 3, 0), lambda x: average_linkage(x, 0.5), lambda x: kmeans(x, 0, 0)]
)
def test_no_points_give_no_clusters(grouped: Callable[[Array], Clusters]) -> None:
    found = grouped(np.empty((0, NDIM)))
    assert (len(found.assignment), len(found.medoids), found.centres.shape) == (0, 0, (0, NDIM))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: kmeans(units(3, 0)[0], 2, 0),
        lambda: kmeans(units(3, 0), 2, 0, [1.0, 1.0]),
        lambda: average_linkage(units(3, 0), 0.5, [1.0] * 4),
    ],
)
def test_another_shape_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ShapeError):
        wrong()
