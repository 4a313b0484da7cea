"""MicroLoRA: a rank-2 adapter that shifts every request, trained online as runs end.

v = x + (xA)B, u = v/|v|; the loss is defined in `listwise`. G = dL/du; g = (G - (G.u)u)/|v|; dB = (xA)'g; dA = x'(gB').
A starts as the first two left singular vectors of X'g, the gradient with respect to the product AB, and B starts at
zero. Therefore, the adapter starts as the identity, and the first step on B is this gradient, truncated to rank two.
The spectral norm of AB is capped at 1.

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
TRAIN_RATE = 0.01
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


_decoder = msgspec.msgpack.Decoder(_State)


class MicroLora:
    """One user's adapter with its EWC penalty. Deterministic. Not thread-safe."""

    def __init__(self, ndim: int, ewc: ElasticWeights | None = None, seed: int = 0) -> None:
        """Start as the identity for requests of shape (ndim,). `ewc` must have 4 * ndim parameters.

        `seed` determines the order of training, and the second direction of A if the examples span only one direction.
        """
        self._ndim = ndim
        self._seed = seed
        self._parameters = np.zeros(2 * RANK * ndim)
        self.ewc = ElasticWeights(self._parameters.size) if ewc is None else ewc
        if self.ewc.held.shape != self._parameters.shape:
            raise ShapeError(self._parameters.size, self.ewc.held.shape)

    @property
    def parameters(self) -> Array:
        """A followed by B, flattened, (p,)."""
        return self._parameters.copy()

    @property
    def spectral_norm(self) -> float:
        """The spectral norm of AB, or 0 before training."""
        down, up = self._matrices()
        values, vectors = np.linalg.eigh(down.T @ down)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        largest = float(np.linalg.eigvalsh(root @ (up @ up.T) @ root)[-1])
        return float(np.sqrt(max(largest, 0.0)))

    def adapt(self, x: Array | Vector) -> Array:
        """Return the unit vector `x`, (d,), shifted and normalised, or unchanged if it is not finite."""
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
        """Return the unweighted loss of each example, (s,)."""
        return losses(self._moved(self._requests(examples))[0], examples)[0]

    def gradients(self, examples: Sequence[Example]) -> Array:
        """Return the gradient of the weighted loss of each example, (s, p)."""
        requests = self._requests(examples)
        pulls = self._pulls(requests, examples)
        down, up = self._matrices()
        with np.errstate(all="ignore"):
            by_down = requests[:, :, None] * (pulls @ up.T)[:, None, :]
            by_up = (requests @ down)[:, :, None] * pulls[:, None, :]
        return np.concatenate([by_down.reshape(len(requests), -1), by_up.reshape(len(requests), -1)], axis=1)

    def step(self, examples: Sequence[Example]) -> bool:
        """Take one step of `STEP_RATE` on the finite gradients, with the EWC pull; return False if no gradient is
        finite.
        """
        self._initialise(examples)
        gradient = self._mean_gradient(examples)
        if gradient is None:
            return False
        pull = self.ewc.pull(self._parameters, STEP_RATE)
        self._parameters = self._parameters - STEP_RATE * gradient - pull
        self._cap()
        return True

    def train(self, examples: Sequence[Example], rounds: int = 4) -> None:
        """Train for `rounds` epochs of Adam with the EWC penalty, then update the penalty. Slow."""
        self._initialise(examples)
        adam = _Adam(self._parameters.size)
        rng = np.random.default_rng(self._seed)
        for _ in range(rounds):
            order = rng.permutation(len(examples))
            for start in range(0, len(order), _BATCH):
                gradient = self._mean_gradient([examples[row] for row in order[start : start + _BATCH]])
                if gradient is not None:
                    self._parameters = self._parameters - adam.step(gradient + self.ewc.gradient(self._parameters))
                    self._cap()
        if len(examples):
            self.ewc.observe(self.gradients(examples))
        self.ewc.anchor(self._parameters)

    def to_bytes(self) -> bytes:
        ewc = (self.ewc.importance.tobytes(), self.ewc.held.tobytes())
        return msgspec.msgpack.encode(_State(_VERSION, self._seed, self._parameters.tobytes(), *ewc))

    @classmethod
    def from_bytes(cls, data: bytes, ndim: int) -> Self:
        """Restore an object from the output of `to_bytes`. Raises `DamagedStateError` if the bytes are damaged, or if
        `ndim` or the version differs.
        """
        try:
            state = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedStateError(f"micro_lora: {error}") from error
        adapter = cls(ndim, seed=state.seed)
        saved = (state.parameters, state.importance, state.held)
        if state.version != _VERSION or any(len(part) != adapter._parameters.nbytes for part in saved):
            raise DamagedStateError("micro_lora: different version or shape")
        parameters, importance, held = (np.frombuffer(part, dtype=np.float64) for part in saved)
        if not all(np.isfinite(part).all() for part in (parameters, importance, held)) or (importance < 0).any():
            raise DamagedStateError("micro_lora: a value is not finite, or an importance is negative")
        adapter._parameters = parameters.copy()
        adapter.ewc.restore(importance, held)
        return adapter

    def _matrices(self) -> tuple[Array, Array]:
        """Return views of A, (d, r), and B, (r, d)."""
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
        """Return g, (s, d): the gradient of each weighted loss with respect to v."""
        with np.errstate(all="ignore"):  # callers drop rows with infinite or NaN values
            moved, lengths = self._moved(requests)
            by_moved = losses(moved, examples)[1] if examples else np.zeros_like(requests)
            along = (by_moved * moved).sum(axis=1, keepdims=True)
            weights = np.array([example.weight for example in examples]).reshape(-1, 1)
            return np.asarray(weights * (by_moved - along * moved) / lengths)

    def _mean_gradient(self, examples: Sequence[Example]) -> Array | None:
        """Return the mean of the finite `gradients`, (p,), without computing each of them; None if no gradient is
        finite.
        """
        requests = self._requests(examples)
        pulls = self._pulls(requests, examples)
        finite = np.isfinite(pulls).all(axis=1)
        if not finite.any():
            return None
        requests, pulls = requests[finite], pulls[finite]
        down, up = self._matrices()
        by_down, by_up = requests.T @ (pulls @ up.T), (requests @ down).T @ pulls
        return np.concatenate([by_down.ravel(), by_up.ravel()]) / len(requests)

    def _initialise(self, examples: Sequence[Example]) -> None:
        """Initialise A once with the left singular vectors of X'g, (d, d), computed within the span of X'.

        X' = Q R, so X'g = Q (R g), and the Gram matrix of R g is at most s by s.
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
        """Return `one`, (d, 1), joined with a random orthogonal direction, (d, 2)."""
        drawn = np.random.default_rng(self._seed).normal(size=(self._ndim, 1))
        drawn -= one * (one.T @ drawn)
        return np.concatenate([one, drawn / np.linalg.norm(drawn)], axis=1)

    def _cap(self) -> None:
        norm = self.spectral_norm
        if norm > MOST:
            self._parameters = self._parameters * np.sqrt(MOST / norm)


class _Adam:
    """Adam (Kingma and Ba 2015) with the usual constants."""

    def __init__(self, size: int) -> None:
        self._first, self._second, self._steps = np.zeros(size), np.zeros(size), 0

    def step(self, gradient: Array) -> Array:
        """Return the step to subtract from the parameters, (p,)."""
        self._steps += 1
        self._first = _KEEP_FIRST * self._first + (1 - _KEEP_FIRST) * gradient
        self._second = _KEEP_SECOND * self._second + (1 - _KEEP_SECOND) * gradient**2
        scale = np.sqrt(self._second / (1 - _KEEP_SECOND**self._steps)) + _TINY
        return np.asarray(TRAIN_RATE * self._first / (1 - _KEEP_FIRST**self._steps) / scale)
