"""The arms to compare: rankings, and signals to learn from. Every arm runs the real `Memory` with its own settings.

A signal consists of the memories that a run reports as used, and the run's verdict:

- oracle: all evidence, found or not, always approved; an upper bound that no real user's feedback can reach.
- cite, the main signal: the evidence that was shown, except that each item is replaced with probability .2 by another
  memory that was shown; approved if evidence was shown, failed otherwise, with 10 % of the verdicts inverted.
- list: everything that was shown, which is uninformative; verdicts as in cite.
- shuffled oracle, shuffled cite: controls that report as many memories as oracle and cite, but choose another
  question's evidence or random shown memories. A gain shown by these controls does not come from learning from use.

Three parts of the learner can be isolated by turning the others off in the settings, and are measured separately: the
bank, the association (the memories used by the nearest past requests), and the quality prior. No setting shifts all
queries by one vector, so the arm `rocchio` turns learning off and uses an embedder that shifts its queries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from memory_agent.evaluation import Place
from memory_agent.records.memories import Mode
from memory_agent.settings import LearningSettings, Settings
from ops.lab.histories import SplitName

Learning = Literal["auto", "on", "off"]

_NOTHING_BUT_VECTORS: dict[str, Any] = {
    "contiguity": 0.0,
    "context_words": 0.0,
    "speaker_weight": 0.0,
    "dates": "ignore",
}


@dataclass(frozen=True)
class Arm:
    """One arm: the signal from its runs (None: no feedback), its learning mode, and its search.

    `recall` and `parts` override recall and learning settings. `curve` also measures the arm during training; `few`
    limits it to a few seeds, to save time; `moves` shifts its queries by the Rocchio vector.
    """

    name: str
    signal: Signal | None
    learning: Learning
    splits: tuple[SplitName, ...]
    mode: Mode | None = None
    recall: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    curve: bool = False
    few: bool = False
    moves: bool = False

    def settings(self, given: Settings) -> Settings:
        """Return `given` with this arm's overrides."""
        replace = msgspec.structs.replace
        learning = replace(given.learning, mode=self.learning, **self.parts)
        return replace(given, learning=learning, recall=replace(given.recall, **self.recall))


OFF = "learning off"
ORACLE, CITE, LIST = "oracle", "cite", "list"
GATED = "cite, gate decides"
SHUFFLED_ORACLE, SHUFFLED_CITE = "shuffled oracle", "shuffled cite"
VECTORS = "vectors"
BANK, ASSOCIATION, PRIOR = "cite, bank alone", "cite, association alone", "cite, prior alone"
ROCCHIO, SHUFFLED_ROCCHIO = "cite, one vector for all", "shuffled cite, one vector"

CONTROLS: dict[str, str] = (
    {ORACLE: SHUFFLED_ORACLE}
    | dict.fromkeys((CITE, GATED, LIST, BANK, ASSOCIATION, PRIOR), SHUFFLED_CITE)
    | {ROCCHIO: SHUFFLED_ROCCHIO}
)
"""The control that each arm must beat, by arm name."""

_NO_PART: dict[str, Any] = dict.fromkeys(("association", "recurrence", "shift", "prior"), 0.0)
_SHIPPED = LearningSettings()
_ASSOCIATION_ALONE = _NO_PART | {"association": _SHIPPED.association, "recurrence": _SHIPPED.recurrence}
_PRIOR = 0.1
"""The maximum weight that the design allows for the prior, which is off by default."""

_RANDOM: tuple[SplitName, ...] = ("random",)
_DISJOINT: tuple[SplitName, ...] = ("disjoint",)
_BOTH: tuple[SplitName, ...] = ("random", "disjoint")

ARMS: tuple[Arm, ...] = (
    Arm(OFF, None, "off", _BOTH, curve=True),
    Arm(VECTORS, None, "off", _RANDOM, mode="vector", recall=_NOTHING_BUT_VECTORS, few=True),
    Arm(ORACLE, "oracle", "on", _BOTH, curve=True),
    Arm(CITE, "cite", "on", _BOTH, curve=True),
    Arm(GATED, "cite", "auto", _DISJOINT),
    Arm(BANK, "cite", "on", _RANDOM, parts=_NO_PART | {"shift": _SHIPPED.shift}, few=True),
    Arm(ASSOCIATION, "cite", "on", _RANDOM, parts=_ASSOCIATION_ALONE, few=True),
    Arm(PRIOR, "cite", "on", _RANDOM, parts=_NO_PART | {"prior": _PRIOR}, few=True),
    Arm(ROCCHIO, "cite", "off", _BOTH, few=True, moves=True),
    Arm(SHUFFLED_ROCCHIO, "shuffled cite", "off", _BOTH, few=True, moves=True),
    Arm(LIST, "list", "on", _RANDOM, few=True),
    Arm(SHUFFLED_ORACLE, "shuffled oracle", "on", _RANDOM),
    Arm(SHUFFLED_CITE, "shuffled cite", "on", _BOTH, curve=True),
)
FEW = 2
"""The number of seeds for arms that are measured only for comparison."""


def chosen(signals: tuple[Signal, ...]) -> tuple[Arm, ...]:
    """Return the arms without a signal, and the arms that learn from `signals`."""
    return tuple(arm for arm in ARMS if arm.signal is None or arm.signal in signals)


Signal = Literal["oracle", "cite", "list", "shuffled oracle", "shuffled cite"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)

APPROVED, FAILED = 1.0, 0.0
WRONG_CITATIONS = 0.2
WRONG_VERDICTS = 0.1


class Claim(NamedTuple):
    """The ids of the items that a run reports as used, and the run's quality."""

    used: tuple[str, ...]
    quality: float


def claim_for(
    signal: Signal,
    relevant: Collection[str],
    others: Collection[str],
    shown: Sequence[Place],
    random: np.random.Generator,
) -> Claim:
    """Return what a run claims, given its question's `relevant` items and the shown ranks.

    `others` are another question's relevant items. A rank is identified by its first item.
    """
    if signal in ("oracle", "shuffled oracle"):
        return Claim(tuple(relevant if signal == "oracle" else others), APPROVED)
    firsts = [place[0] for place in shown]
    right = [place[0] for place in shown if not set(relevant).isdisjoint(place)]
    quality = _verdict(bool(right), random)
    if signal == "list":
        return Claim(tuple(firsts), quality)
    if signal == "shuffled cite":
        drawn = random.permutation(len(firsts))[: len(right)]
        return Claim(tuple(firsts[place] for place in drawn), quality)
    return Claim(_cited(right, firsts, random), quality)


def _cited(right: Sequence[str], shown: Sequence[str], random: np.random.Generator) -> tuple[str, ...]:
    """Return the right items, each possibly replaced by another shown item."""
    wrong = [item for item in shown if item not in right]
    mistaken = random.random(len(right)) < WRONG_CITATIONS
    cited = (
        wrong[random.integers(len(wrong))] if is_wrong and wrong else item
        for item, is_wrong in zip(right, mistaken, strict=True)
    )
    return tuple(dict.fromkeys(cited))


def _verdict(succeeded: bool, random: np.random.Generator) -> float:
    is_wrong = random.random() < WRONG_VERDICTS
    return APPROVED if succeeded != is_wrong else FAILED
