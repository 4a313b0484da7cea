"""Saves a learner as bytes, with a version and a checksum, and restores it.

On loading, the bank and the association are recomputed from the exemplars, because saving the bank's matrices would
more than double the size. A consolidated learner is restored bit for bit. Do not save an unconsolidated learner.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import numpy as np

from sona.centering import QueryCentering
from sona.errors import DamagedStateError
from sona.exemplars import Exemplar
from sona.gate import Gate
from sona.instant import InstantLayer
from sona.learner import Fact, Learner
from sona.lesson import Comparison, Contest, Vector
from sona.prior import MemoryPrior
from sona.quality import Baselines

VERSION = 3
_FORMER = (1, 2)  # in these versions, gates counted differently, so the learner must be rebuilt
_MAGIC = b"sona"
_DIGEST_BYTES = 16


class _Fact(msgspec.Struct, array_like=True):
    kind: str
    quality: float
    used: tuple[int, ...]
    credits: tuple[float, ...]
    contest: tuple[int, int] | None
    comparison: tuple[float, float] | None


class _State(msgspec.Struct, array_like=True):
    ndim: int
    capacity: int
    queries: bytes
    targets: bytes
    gate: bytes
    baselines: bytes
    prior: bytes
    instant: bytes
    facts: dict[int, _Fact]
    exemplars: list[Exemplar]


def _vector(_: type, data: bytes) -> Vector:
    return np.frombuffer(data, dtype=np.float32)


_decoder = msgspec.msgpack.Decoder(_State, dec_hook=_vector)


def to_bytes(learner: Learner) -> bytes:
    """Return a consolidated learner as bytes. Equal learners yield identical bytes."""
    state = _State(
        ndim=learner.ndim,
        capacity=learner.capacity,
        queries=learner.queries.to_bytes(),
        targets=learner.targets.to_bytes(),
        gate=learner.gate.to_bytes(),
        baselines=learner.baselines.to_bytes(),
        prior=learner.prior.to_bytes(),
        instant=learner.instant.to_bytes(),
        facts={
            number: _Fact(fact.kind, fact.quality, fact.used, fact.credits, *_saved_contest(fact.contest))
            for number, fact in sorted(learner.facts.items())
        },
        exemplars=[learner.exemplars[number] for number in sorted(learner.exemplars)],
    )
    body = msgspec.msgpack.encode(state, enc_hook=np.ndarray.tobytes)
    return _MAGIC + VERSION.to_bytes(2, "big") + _digest(body) + body


def from_bytes(data: bytes) -> Learner:
    """Restore a learner. Raises `DamagedStateError` if the bytes are damaged or from a different version."""
    body = whole_body(data)
    if is_former(data):
        raise DamagedStateError("checkpoint: an older version")
    try:
        return _restored(_decoder.decode(body))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise DamagedStateError(f"checkpoint: {error}") from error


def whole_body(data: bytes) -> bytes:
    """Return the bytes that the checksum covers, even for an earlier version. Raises `DamagedStateError`."""
    head = len(_MAGIC) + 2
    if data[: len(_MAGIC)] != _MAGIC or int.from_bytes(data[len(_MAGIC) : head], "big") not in (VERSION, *_FORMER):
        raise DamagedStateError("checkpoint: unknown version, or not a checkpoint")
    body = data[head + _DIGEST_BYTES :]
    if _digest(body) != data[head : head + _DIGEST_BYTES]:
        raise DamagedStateError("checkpoint: does not match its checksum")
    return body


def is_former(data: bytes) -> bool:
    """Return whether these bytes are from an earlier version; if so, `from_bytes` rejects them even if they are
    intact.
    """
    return data.startswith(tuple(_MAGIC + version.to_bytes(2, "big") for version in _FORMER))


def _restored(state: _State) -> Learner:
    learner = Learner(state.ndim, state.capacity)
    learner.queries = QueryCentering.from_bytes(state.queries, state.ndim)
    learner.targets = QueryCentering.from_bytes(state.targets, state.ndim)
    learner.gate = Gate.from_bytes(state.gate)
    learner.baselines = Baselines.from_bytes(state.baselines)
    learner.prior = MemoryPrior.from_bytes(state.prior)
    learner.facts = {
        number: Fact(fact.kind, fact.quality, fact.used, fact.credits, _loaded_contest(fact))
        for number, fact in state.facts.items()
    }
    learner.hold(state.exemplars)
    learner.instant = InstantLayer.from_bytes(state.instant, state.ndim)
    return learner


def _saved_contest(
    contest: Contest | Comparison | None,
) -> tuple[tuple[int, int] | None, tuple[float, float] | None]:
    return (None, contest) if isinstance(contest, Comparison) else (contest, None)


def _loaded_contest(fact: _Fact) -> Contest | Comparison | None:
    if fact.comparison is not None:
        return Comparison(*fact.comparison)
    return fact.contest and Contest(*fact.contest)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()
