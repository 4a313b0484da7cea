"""Records runs and learns from them: lessons for `sona`, outcomes of memories, and patterns.

Read `run_records` first: it records the runs that events report, and `run_links` links them to recalls and to each
other. `attribution` and `outcomes` derive which memories a run used and how well it ended. `lessons` and `learner`
train `sona` with these results. `consolidation` does the deferred work.
"""

from __future__ import annotations

from memory_agent.learning.attribution import names_list, shown_row
from memory_agent.learning.consolidation import Consolidation
from memory_agent.learning.engine import LearningEngine, own_engine
from memory_agent.learning.export import export_runs, import_runs, read_export
from memory_agent.learning.learner import (
    LEARNER_FILE,
    USUAL,
    Advice,
    UserLearner,
    discard_learner,
    load_learner,
    look_at_learner,
    saved_bytes,
)
from memory_agent.learning.lessons import ignore_ended_runs
from memory_agent.learning.pattern_store import remove_patterns
from memory_agent.learning.patterns import (
    WORKED,
    RunSteps,
    SharedStep,
    shared_steps,
    steps_of_failed_alone,
    words_without_figures,
)
from memory_agent.learning.run_records import Entry, RunRecords
from memory_agent.learning.run_views import to_similar_run, to_trajectory, words_of
from memory_agent.learning.shared_use import MOST_AHEAD_US, Outbox, filled, outbox_blob, outbox_in
from memory_agent.learning.standings import most_credited, standings

__all__ = [
    "LEARNER_FILE",
    "MOST_AHEAD_US",
    "USUAL",
    "WORKED",
    "Advice",
    "Consolidation",
    "Entry",
    "LearningEngine",
    "Outbox",
    "RunRecords",
    "RunSteps",
    "SharedStep",
    "UserLearner",
    "discard_learner",
    "export_runs",
    "filled",
    "ignore_ended_runs",
    "import_runs",
    "load_learner",
    "look_at_learner",
    "most_credited",
    "names_list",
    "outbox_blob",
    "outbox_in",
    "own_engine",
    "read_export",
    "remove_patterns",
    "saved_bytes",
    "shared_steps",
    "shown_row",
    "standings",
    "steps_of_failed_alone",
    "to_similar_run",
    "to_trajectory",
    "words_of",
    "words_without_figures",
]
