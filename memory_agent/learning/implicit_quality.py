"""How well a run went, with what followed it counted in: weak evidence, as a fraction of a run. Pure.

    implicit quality = (q + share * t) / (1 + share)        t = 1 for good signs, 0 for bad ones

`q` is the quality of a completed run; of a run that never ended, .5. It decides only where nobody's verdict does: a
run that was rated, approved or rejected, failed, was cancelled or retried, or whose success a linked run continued,
has none. The shares keep the order of verdicts: failed 0 < retried .4 < never ended .41 to .55 < completed .66 to .82 <
later success .825 to .9 < approved 1; so what followed moves a run by at most .14.

    asked again within five minutes     .2, later .1 (bad)
    a related later success             .1 (good): a fifth of what an explicit link adds
    the session went on elsewhere       .05 (good); too little to say anything of a run that never ended

A session that ends says nothing: users leave with what they wanted as they leave without it. No recorded runs have
these signs with verdicts to hold them against (decision 0017), which is why the shares are small.
"""

from __future__ import annotations

from memory_agent.storage.stored_runs import StoredSign, StoredTrajectory

ASKED_SOON, ASKED_LATER, LATER_SUCCESS, WENT_ON = 0.2, 0.1, 0.1, 0.05
SOON_US = 300_000_000
_UNKNOWN = 0.5
_CLEAR = 0.1
"""The least share that says anything of a run without an end."""


def implicit_quality(run: StoredTrajectory) -> float | None:
    """Return the quality of a run with what followed it, None where that does not count."""
    own, over_us = _own_quality(run), run.over_us
    if own is None or over_us is None:
        return None
    signs = {sign.kind: sign for sign in run.signs}
    again = signs.get("asked_again")
    share, good = max(LATER_SUCCESS * ("later_success" in signs), WENT_ON * ("went_on" in signs)), 1.0
    if again is not None:
        share, good = _share_of_asking(again, over_us), 0.0
    if not share or (run.ended_us is None and share < _CLEAR):
        return None
    return (own + share * good) / (1.0 + share)


def taught_quality(run: StoredTrajectory) -> float | None:
    """Return the quality that lessons have: the implicit one where there is one, None before the run ended."""
    found = None if run.quality is None else implicit_quality(run)
    return run.quality if found is None else found


def _own_quality(run: StoredTrajectory) -> float | None:
    if run.revisions:
        return run.quality if run.revisions[-1].reason == "completed" else None
    is_judged = run.ended_us is not None or any(mark.quality is not None for mark in run.marks)
    return None if is_judged or run.begin_row is None else _UNKNOWN


def _share_of_asking(sign: StoredSign, over_us: int) -> float:
    return ASKED_SOON if sign.at_us - over_us <= SOON_US else ASKED_LATER
