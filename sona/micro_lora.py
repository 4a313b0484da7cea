"""A step of rank two that moves every request: learnt at once, from each run as it ends.

SONA.md 3: v = x + (xA)B, u = v/|v|; the loss is that of `listwise`. G = dL/du; g = (G - (G.u)u)/|v|; dB = (xA)'g;
dA = x'(gB'). A begins as the first two directions, among the requests, of the closed-form gradient X'g of the product
AB, and B at zero: so nothing moves at birth, and the first step on B is exactly that gradient cut to rank two. (Both at
zero would never learn, A by chance learns worse.) The spectral norm of AB stays at most 1. What this does not do:
choose examples, or keep them. On evidence it never saw it is no better than one global Rocchio vector (measured there).

Shapes: d = dimensions of an embedding, r = rank, s = samples, p = 2 r d parameters: A (d, r), then B (r, d).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np

from sona.elastic_weights import ElasticWeights
from sona.errors import DamagedStateError, ShapeError
from sona.lesson import Array, Vector
from sona.listwise import Example, losses

RANK = 2
STEP_RATE = 0.05
STUDY_RATE = 0.01
MOST = 1.0  # spectral norm of AB
_BATCH = 16
_KEEP_FIRST, _KEEP_SECOND, _TINY = 0.9, 0.999, 1e-8
_VERSION = 1


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    seed: int
    parameters: bytes
    importance: bytes
    held: bytes


class MicroLora:
    """The adapter of one user, and the springs that hold it. Deterministic. Not thread-safe."""

    def __init__(self, ndim: int, springs: ElasticWeights | None = None, seed: int = 0) -> None:
        """Start as the identity for requests of shape (ndim,). `springs` has 4 ndim parameters; by default its own.

        The seed decides the order of studying, and A's second direction where the examples have but one. Raises
        `ShapeError`.
        """
        self._ndim = ndim
        self._seed = seed
        self._parameters = np.zeros(2 * RANK * ndim)
        self.springs = ElasticWeights(self._parameters.size) if springs is None else springs
        if self.springs.held.shape != self._parameters.shape:
            raise ShapeError(self._parameters.size, self.springs.held.shape)

    @property
    def parameters(self) -> Array:
        """A and B, one after the other, (p,)."""
        return self._parameters.copy()

    @property
    def spectral_norm(self) -> float:
        """The most that AB stretches any request; 0 at birth. By eigenvalues of r by r matrices, never by `svd`."""
        down, up = self._matrices()
        values, vectors = np.linalg.eigh(down.T @ down)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        largest = float(np.linalg.eigvalsh(root @ (up @ up.T) @ root)[-1])
        return float(np.sqrt(max(largest, 0.0)))

    def adapt(self, x: Array | Vector) -> Array:
        """Return where the request `x`, (d,) of unit length, is moved to, (d,) of unit length; `x` itself at birth.

        What is not finite is not moved. Raises `ShapeError`.
        """
        if x.shape != (self._ndim,):
            raise ShapeError(self._ndim, x.shape)
        down, up = self._matrices()
        request = x.astype(np.float64)
        if not up.any() or not np.isfinite(request).all():
            return request
        moved = request + (request @ down) @ up
        length = float(np.linalg.norm(moved))
        return moved / length if length > _TINY else request

    def loss(self, examples: Sequence[Example]) -> Array:
        """Return the loss of each example as it is, (s,), unweighted. Raises `ShapeError`."""
        return losses(self._moved(self._requests(examples))[0], examples)[0]

    def gradients(self, examples: Sequence[Example]) -> Array:
        """Return each example's own gradient of weight times loss, (s, p). Raises `ShapeError`."""
        requests = self._requests(examples)
        pulls = self._pulls(requests, examples)
        down, up = self._matrices()
        with np.errstate(all="ignore"):
            by_down = requests[:, :, None] * (pulls @ up.T)[:, None, :]
            by_up = (requests @ down)[:, :, None] * pulls[:, None, :]
        return np.concatenate([by_down.reshape(len(requests), -1), by_up.reshape(len(requests), -1)], axis=1)

    def step(self, examples: Sequence[Example]) -> bool:
        """Learn at once from the new example and the replayed ones: one step of `STEP_RATE` and the springs' pull.

        Examples that are not finite are passed over; False where that leaves none. Raises `ShapeError`.
        """
        self._be_born(examples)
        gradient = self._mean_gradient(examples)
        if gradient is None:
            return False
        pull = self.springs.pull(self._parameters, STEP_RATE)
        self._parameters = self._parameters - STEP_RATE * gradient - pull
        self._cap()
        return True

    def study(self, examples: Sequence[Example], rounds: int = 4) -> None:
        """Go over all examples `rounds` times, by Adam against the springs, then set the springs anew: background work.

        Raises `ShapeError`.
        """
        self._be_born(examples)
        adam = _Adam(self._parameters.size)
        rng = np.random.default_rng(self._seed)
        for _ in range(rounds):
            order = rng.permutation(len(examples))
            for start in range(0, len(order), _BATCH):
                gradient = self._mean_gradient([examples[row] for row in order[start : start + _BATCH]])
                if gradient is not None:
                    self._parameters = self._parameters - adam.step(gradient + self.springs.gradient(self._parameters))
                    self._cap()
        if len(examples):
            self.springs.observe(self.gradients(examples))
        self.springs.anchor(self._parameters)

    def to_bytes(self) -> bytes:
        """Return the state; `from_bytes` makes an equal adapter of it."""
        springs = (self.springs.importance.tobytes(), self.springs.held.tobytes())
        return msgspec.msgpack.encode(_State(_VERSION, self._seed, self._parameters.tobytes(), *springs))

    @classmethod
    def from_bytes(cls, data: bytes, ndim: int) -> Self:
        """Return the adapter that `to_bytes` saved. Raises `DamagedStateError`, also for another `ndim` or version."""
        try:
            state = msgspec.msgpack.decode(data, type=_State)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedStateError(f"micro_lora: {error}") from error
        adapter = cls(ndim, seed=state.seed)
        saved = (state.parameters, state.importance, state.held)
        if state.version != _VERSION or any(len(part) != adapter._parameters.nbytes for part in saved):
            raise DamagedStateError("micro_lora: another version or shape")
        parameters, importance, held = (np.frombuffer(part, dtype=np.float64) for part in saved)
        if not all(np.isfinite(part).all() for part in (parameters, importance, held)) or (importance < 0).any():
            raise DamagedStateError("micro_lora: not finite, or a spring that pushes")
        adapter._parameters = parameters.copy()
        adapter.springs.restore(importance, held)
        return adapter

    def _matrices(self) -> tuple[Array, Array]:
        """Return A, (d, r), and B, (r, d): views."""
        half = RANK * self._ndim
        return self._parameters[:half].reshape(self._ndim, RANK), self._parameters[half:].reshape(RANK, self._ndim)

    def _requests(self, examples: Sequence[Example]) -> Array:
        for example in examples:
            if len(example.x) != self._ndim:
                raise ShapeError(self._ndim, example.x.shape)
        return np.array([example.x for example in examples], dtype=np.float64).reshape(-1, self._ndim)

    def _moved(self, requests: Array) -> tuple[Array, Array]:
        """Return u, (s, d), and |v|, (s, 1)."""
        down, up = self._matrices()
        moved = requests + (requests @ down) @ up
        lengths = np.linalg.norm(moved, axis=1, keepdims=True)
        return moved / lengths, lengths

    def _pulls(self, requests: Array, examples: Sequence[Example]) -> Array:
        """Return g, (s, d): the gradient of each weighted loss by v."""
        with np.errstate(all="ignore"):  # what is not finite is sifted out by who asked
            moved, lengths = self._moved(requests)
            by_moved = losses(moved, examples)[1] if examples else np.zeros_like(requests)
            along = (by_moved * moved).sum(axis=1, keepdims=True)
            weights = np.array([example.weight for example in examples]).reshape(-1, 1)
            return np.asarray(weights * (by_moved - along * moved) / lengths)

    def _mean_gradient(self, examples: Sequence[Example]) -> Array | None:
        """Return the mean of `gradients` over what is finite, (p,), without making each; None where nothing is."""
        requests = self._requests(examples)
        pulls = self._pulls(requests, examples)
        finite = np.isfinite(pulls).all(axis=1)
        if not finite.any():
            return None
        requests, pulls = requests[finite], pulls[finite]
        down, up = self._matrices()
        by_down, by_up = requests.T @ (pulls @ up.T), (requests @ down).T @ pulls
        return np.concatenate([by_down.ravel(), by_up.ravel()]) / len(requests)

    def _be_born(self, examples: Sequence[Example]) -> None:
        """Give A its first directions, once: the left singular vectors of X'g, (d, d), found within the span of X'.

        X' = Q R, so X'g = Q (R g), of which the small factor's Gram matrix is at most s by s.
        """
        if self._parameters.any():
            return
        requests = self._requests(examples)
        pulls = self._pulls(requests, examples)
        finite = np.isfinite(pulls).all(axis=1)
        if not pulls[finite].any():
            return
        span, rest = np.linalg.qr(requests[finite].T)
        small = rest @ pulls[finite]
        _, directions = np.linalg.eigh(small @ small.T)
        leading = span @ directions[:, ::-1][:, :RANK]
        self._matrices()[0][:] = leading if leading.shape[1] == RANK else self._with_one_more(leading)

    def _with_one_more(self, one: Array) -> Array:
        """Return the direction, (d, 1), and one by chance at right angles to it."""
        drawn = np.random.default_rng(self._seed).normal(size=(self._ndim, 1))
        drawn -= one * (one.T @ drawn)
        return np.concatenate([one, drawn / np.linalg.norm(drawn)], axis=1)

    def _cap(self) -> None:
        """Shrink both factors alike until AB stretches nothing beyond `MOST`."""
        norm = self.spectral_norm
        if norm > MOST:
            self._parameters = self._parameters * np.sqrt(MOST / norm)


class _Adam:
    """Adam (Kingma, Ba 2015) with its usual constants."""

    def __init__(self, size: int) -> None:
        self._first, self._second, self._steps = np.zeros(size), np.zeros(size), 0

    def step(self, gradient: Array) -> Array:
        """Return what is to be taken off the parameters, (p,)."""
        self._steps += 1
        self._first = _KEEP_FIRST * self._first + (1 - _KEEP_FIRST) * gradient
        self._second = _KEEP_SECOND * self._second + (1 - _KEEP_SECOND) * gradient**2
        scale = np.sqrt(self._second / (1 - _KEEP_SECOND**self._steps)) + _TINY
        return np.asarray(STUDY_RATE * self._first / (1 - _KEEP_FIRST**self._steps) / scale)
