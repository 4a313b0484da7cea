"""What is compared: ways to rank, and signals to learn from. Every arm is the real `Memory` under other settings.

Parts of what is learnt are tried alone where a setting takes the others away: the bank, the association (which is what
the nearest past requests used), the quality prior. Left out, because no setting of `Memory` gives it and a ranking of
our own would prove nothing about the shipped one: a global Rocchio vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from memory_agent.evaluation.learning.signals import Signal
from memory_agent.evaluation.learning.splits import SplitName
from memory_agent.records import Mode
from memory_agent.settings import Settings

Learning = Literal["auto", "on", "off"]

_NOTHING_BUT_VECTORS: dict[str, Any] = {"contiguity": 0.0, "context_words": 0.0, "dates": "ignore", "diversity": 0.0}


@dataclass(frozen=True)
class Arm:
    """One way: what its runs say they used (None: nothing), whether what is learnt acts, and how it looks.

    `recall` and `parts` are settings of recall and of learning that differ from those given. An arm with a `curve` is
    asked while it learns, too.
    """

    name: str
    signal: Signal | None
    learning: Learning
    splits: tuple[SplitName, ...]
    mode: Mode | None = None
    recall: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    curve: bool = False

    def settings(self, given: Settings) -> Settings:
        """Return the settings that were given, with those of this arm."""
        replace = msgspec.structs.replace
        learning = replace(given.learning, mode=self.learning, **self.parts)
        return replace(given, learning=learning, recall=replace(given.recall, **self.recall))


OFF = "learning off"
ORACLE, CITE, LIST = "oracle", "cite", "list"
GATED = "cite, gate decides"
SHUFFLED_ORACLE, SHUFFLED_CITE = "shuffled oracle", "shuffled cite"
RAW, CENTRED = "vectors, raw", "vectors, centred"
BANK, ASSOCIATION, PRIOR = "cite, bank alone", "cite, association alone", "cite, prior alone"

CONTROLS: dict[str, str] = {ORACLE: SHUFFLED_ORACLE} | dict.fromkeys(
    (CITE, GATED, LIST, BANK, ASSOCIATION, PRIOR), SHUFFLED_CITE
)
"""The control that an arm has to beat."""

_NO_PART: dict[str, Any] = dict.fromkeys(("association", "recurrence", "shift", "outcome", "prior"), 0.0)
_PRIOR = 0.1
"""Where the design bounds the weight of the prior, which is off by default."""

_BOTH: tuple[SplitName, ...] = ("random", "disjoint")

ARMS: tuple[Arm, ...] = (
    Arm(OFF, None, "off", _BOTH, curve=True),
    Arm(RAW, None, "off", _BOTH, mode="vector", recall=_NOTHING_BUT_VECTORS | {"centering": False}),
    Arm(CENTRED, None, "off", _BOTH, mode="vector", recall=_NOTHING_BUT_VECTORS),
    Arm(ORACLE, "oracle", "on", _BOTH, curve=True),
    Arm(CITE, "cite", "on", _BOTH, curve=True),
    Arm(GATED, "cite", "auto", _BOTH),
    Arm(BANK, "cite", "on", ("random",), parts={"association": 0.0, "recurrence": 0.0, "outcome": 0.0, "prior": 0.0}),
    Arm(ASSOCIATION, "cite", "on", ("random",), parts={"shift": 0.0, "outcome": 0.0, "prior": 0.0}),
    Arm(PRIOR, "cite", "on", ("random",), parts=_NO_PART | {"prior": _PRIOR}),
    Arm(LIST, "list", "on", ("random",)),
    Arm(SHUFFLED_ORACLE, "shuffled oracle", "on", _BOTH),
    Arm(SHUFFLED_CITE, "shuffled cite", "on", _BOTH, curve=True),
)


def chosen(signals: tuple[Signal, ...]) -> tuple[Arm, ...]:
    """Return the arms that learn nothing, and those that learn from these signals."""
    return tuple(arm for arm in ARMS if arm.signal is None or arm.signal in signals)
