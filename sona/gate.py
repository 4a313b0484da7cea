"""Enables the learner only while the memories used by runs show that it helps.

The states are SHADOW (fewer than 2 credited lessons) -> TRIAL (answers use the baseline ranking, which is compared with
the learned ranking; the latter is not shown) -> ON (answers use the learned ranking; 10 % of them are interleaved) or
OFF (for 100 credited lessons, then TRIAL again).

The gate tests by betting (Shafer 2021): each comparison (`comparison`) and each contest of interleaved rankings
multiplies a wealth that starts at 1. If past use predicts nothing beyond what position predicts, the expected wealth
never rises. By Ville's inequality, the probability that the wealth ever reaches t is then at most 1/t, however often it
is tested. The first TRIAL requires a wealth of 28; the n-th TRIAL requires 140 * 2^(n - 2). Over all TRIALs, the
learner is then turned ON with a probability of at most 1/28 + 1/140 + 1/280 + ... = .05. The test does not change any
answer.

For contests, wealth is divided equally among stakes of .1, .2, .4 and .8. Contests are also counted in TRIAL, because
earlier versions interleaved in this state.

The opposite bet measures harm. It turns the learner OFF at 20, both in TRIAL and in ON. When the gate enters ON, the
wealth of this bet is reset to 1, and from then on only contests count. After a long series of wins, this wealth is too
low to detect later harm promptly. Therefore, a second bet in ON restarts whenever its wealth falls below 1 (a CUSUM
e-detector: Shin, Ramdas, Rinaldo 2023), and turns the learner OFF at 400. If the learner is no better than chance, this
takes at least 400 contests on average.

The state depends only on the sequence of calls to `credit` and `observe`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Self

import msgspec

from sona.comparison import sign_of
from sona.errors import DamagedStateError
from sona.interleaving import share
from sona.lesson import Comparison, Contest

GateState = Literal["shadow", "trial", "on", "off"]
Route = Literal["baseline", "learned", "interleave", "compare"]

SHADOW_LESSONS = 2
COOL_DOWN_LESSONS = 100
THRESHOLD = 28.0
LATER_THRESHOLD = 140.0
HARM_THRESHOLD = 20.0
DRIFT_THRESHOLD = 400.0
# Decided contests. By then, 96 % of learners with a win rate of .6 are ON, and 37 % of those with .55 (measured).
LONGEST_TRIAL = 500
HOLDOUT = 0.1
INTERLEAVED = 0.1
_LOGS = [(math.log1p(bet), math.log1p(-bet)) for bet in (0.1, 0.2, 0.4, 0.8)]
_Z95 = 1.959964
_VERSION = 3
_LARGEST_EXPONENT = 350.0  # the product of two such factors stays finite
_MOST = 1e300

_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True)
class Evidence:
    """The evidence on which the gate bases its decisions.

    In TRIAL, `won`, `lost` and `tied` count comparisons and contests since its start. In ON, they count contests since
    entering ON. In OFF, they are the counts at which the learner was turned OFF.
    """

    state: GateState
    trial: int  # the number of TRIALs so far
    won: int
    lost: int
    tied: int
    evidence: float  # the wealth of the bet on the learner; at `threshold`, the learner is turned ON
    harm: float  # the wealth of the bet against the learner
    drift: float  # the wealth of the restarting bet against the learner
    threshold: float
    credited: int  # lessons with credit
    due: int  # credited lessons until the next TRIAL; 0 in TRIAL and ON


class Gain(NamedTuple):
    """The share of decided contests won by the learned ranking, minus 1/2, with its 95 % interval (Wilson 1927)."""

    share: float
    low: float
    high: float
    decided: int


class _State(msgspec.Struct, array_like=True):
    version: int = _VERSION
    state: GateState = "shadow"
    trial: _Count = 0
    credited: _Count = 0
    waited: _Count = 0
    won: _Count = 0
    lost: _Count = 0
    tied: _Count = 0
    drift_won: _Count = 0
    drift_lost: _Count = 0
    ever_won: _Count = 0
    ever_decided: _Count = 0
    better: _Count = 0
    worse: _Count = 0
    alike: _Count = 0
    log: float = 0.0
    log_of_harm: float = 0.0


_decoder = msgspec.msgpack.Decoder(_State)


class Gate:
    """Decides whether the learner of one user may affect answers. Not thread-safe."""

    def __init__(self) -> None:
        self._state = _State()

    @property
    def state(self) -> GateState:
        return self._state.state

    def route(self, key: str) -> Route:
        """Return which ranking answers the recall with this key. The same key and state always give the same route.

        In every state, the baseline ranking is used for at least a tenth of the keys, as an independent comparison.
        "compare" means that the baseline ranking is shown, and that the learned ranking is only logged, for comparison.
        """
        if self.state != "on":
            return "compare" if self.state == "trial" else "baseline"
        place = share(key, "route")
        if place < HOLDOUT:
            return "baseline"
        return "interleave" if place < HOLDOUT + INTERLEAVED else "learned"

    def credit(self) -> None:
        """Count a credited lesson; start a TRIAL if enough lessons have been counted."""
        self._state.credited += 1
        if self.state in ("shadow", "off"):
            self._state.waited += 1
            if self._state.waited >= self._lessons_required():
                self._state.trial += 1
                self._enter("trial")

    def observe(self, contest: Contest | Comparison | None) -> None:
        """Count a contest or, in TRIAL, a comparison, and update the state. In SHADOW and OFF, only `gain` changes."""
        if isinstance(contest, Comparison):
            if self.state == "trial":
                self._bet_on(contest)
                self._decide()
            return
        if contest is None:
            return
        won, lost = contest.learned > contest.baseline, contest.learned < contest.baseline
        self._state.ever_won += won
        self._state.ever_decided += won or lost
        if self.state in ("trial", "on"):
            self._bet(won, lost)
            self._decide()

    def evidence(self) -> Evidence:
        state = self._state
        return Evidence(
            state=state.state,
            trial=state.trial,
            won=state.won + state.better,
            lost=state.lost + state.worse,
            tied=state.tied + state.alike,
            evidence=self._evidence(),
            harm=self._harm(),
            drift=_wealth(state.drift_lost, state.drift_won),
            threshold=self._threshold(),
            credited=state.credited,
            due=self._lessons_required() - state.waited if state.state in ("shadow", "off") else 0,
        )

    def gain(self) -> Gain | None:
        """Return the gain over all decided contests (not comparisons), or None if there are none.

        For display only: the interval is too narrow if it is tested repeatedly.
        """
        if not self._state.ever_decided:
            return None
        return _wilson(self._state.ever_won, self._state.ever_decided)

    def to_bytes(self) -> bytes:
        """Return the state as bytes. The same sequence of calls always gives the same bytes."""
        return msgspec.msgpack.encode(self._state)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Restore a gate saved by `to_bytes`. Raises `DamagedStateError` if the bytes are damaged or the version
        differs.
        """
        gate = cls()
        try:
            gate._state = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedStateError(f"gate: {error}") from error
        if gate.to_bytes() != data or gate._state.version != _VERSION:
            raise DamagedStateError("gate: different version")
        return gate

    def _lessons_required(self) -> int:
        return SHADOW_LESSONS if self.state == "shadow" else COOL_DOWN_LESSONS

    def _threshold(self) -> float:
        trial = self._state.trial
        return THRESHOLD if trial < 2 else math.ldexp(LATER_THRESHOLD, min(trial - 2, 64))

    def _enter(self, state: GateState) -> None:
        self._state.state = state
        self._state.waited = 0
        if state != "off":
            self._state.won = self._state.lost = self._state.tied = 0
            self._state.drift_won = self._state.drift_lost = 0
            self._state.better = self._state.worse = self._state.alike = 0
            self._state.log = self._state.log_of_harm = 0.0

    def _bet_on(self, comparison: Comparison) -> None:
        state, sign = self._state, sign_of(comparison)
        state.better, state.worse, state.alike = (
            state.better + (sign > 0),
            state.worse + (sign < 0),
            state.alike + (not sign),
        )
        state.log += math.log(comparison.learned)
        state.log_of_harm += math.log(comparison.baseline)

    def _evidence(self) -> float:
        state = self._state
        return min(_wealth(state.won, state.lost) * _exp(state.log), _MOST)

    def _harm(self) -> float:
        state = self._state
        return min(_wealth(state.lost, state.won) * _exp(state.log_of_harm), _MOST)

    def _bet(self, won: bool, lost: bool) -> None:
        state = self._state
        state.won, state.lost, state.tied = state.won + won, state.lost + lost, state.tied + (not won and not lost)
        if state.state == "on":
            state.drift_won, state.drift_lost = state.drift_won + won, state.drift_lost + lost
            if _wealth(state.drift_lost, state.drift_won) < 1.0:
                state.drift_won = state.drift_lost = 0

    def _decide(self) -> None:
        state = self._state
        drift = _wealth(state.drift_lost, state.drift_won)
        if self._harm() >= HARM_THRESHOLD or drift >= DRIFT_THRESHOLD:
            self._enter("off")
        elif state.state == "trial" and self._evidence() >= self._threshold():
            self._enter("on")
        elif state.state == "trial" and state.won + state.lost + state.better + state.worse >= LONGEST_TRIAL:
            self._enter("off")


def _wealth(right: int, wrong: int) -> float:
    """Return the mean over the bets of (1 + bet)^right (1 - bet)^wrong, capped to stay finite."""
    exponents = [right * grown + wrong * shrunk for grown, shrunk in _LOGS]
    return sum(map(_exp, exponents)) / len(_LOGS)


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, _LARGEST_EXPONENT))


def _wilson(won: int, decided: int) -> Gain:
    """Return the share of wins minus 1/2, with Wilson's score interval (JASA 22, 209)."""
    proportion = won / decided
    shrink = 1.0 + _Z95**2 / decided
    centre = (proportion + _Z95**2 / (2 * decided)) / shrink
    spread = _Z95 / shrink * math.sqrt(proportion * (1 - proportion) / decided + _Z95**2 / (4 * decided**2))
    return Gain(proportion - 0.5, centre - spread - 0.5, centre + spread - 0.5, decided)
