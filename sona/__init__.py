"""The learner: uses the outcomes of runs to learn which memories help with which queries. Requires numpy and msgspec.

Read `lesson` (the input of the learner) first, then `learner`, which combines the parts: `reasoning_bank` and
`association` (memories used by similar requests), `instant` (a small adapter), `prior` and `quality`. `gate` decides
whether the learner may act, using evidence from `comparison` and `interleaving`. The package never logs and never reads
a clock. A function raises `ShapeError` if the shape of an array differs from the documented shape.
"""

from __future__ import annotations

from sona import checkpoint
from sona.association import Reached
from sona.centering import WARM_UP, QueryCentering
from sona.clusters import average_linkage
from sona.comparison import MOST_BOOST, WHOLE_BOOST, compare, mean_of
from sona.errors import DamagedStateError, ShapeError, SonaError
from sona.gate import HARM_THRESHOLD, SHADOW_LESSONS, Evidence, Gain, Gate, Route
from sona.interleaving import Arm, Pick, contest, share, team_draft
from sona.learner import CAPACITY, REACH, Adaptation, Fact, Learner, Use
from sona.lesson import Array, Comparison, Contest, Lesson, Vector

__all__ = [
    "CAPACITY",
    "HARM_THRESHOLD",
    "MOST_BOOST",
    "REACH",
    "SHADOW_LESSONS",
    "WARM_UP",
    "WHOLE_BOOST",
    "Adaptation",
    "Arm",
    "Array",
    "Comparison",
    "Contest",
    "DamagedStateError",
    "Evidence",
    "Fact",
    "Gain",
    "Gate",
    "Learner",
    "Lesson",
    "Pick",
    "QueryCentering",
    "Reached",
    "Route",
    "ShapeError",
    "SonaError",
    "Use",
    "Vector",
    "average_linkage",
    "checkpoint",
    "compare",
    "contest",
    "mean_of",
    "share",
    "team_draft",
]
