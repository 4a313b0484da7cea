"""Converts events to records without a store: selects events, extracts texts, and reads what they report about runs.

Read `table` first: it maps event types to memories. `reader` creates an event's record, with text from `payloads` and
the outcome from `verdicts`. `runs` reads what an event reports about a run.
"""

from memory_agent.signals.payloads import NotTextError, read_part, roots
from memory_agent.signals.reader import Dropped, EventReader, id_of, run_id_of, truncate
from memory_agent.signals.runs import RunSign, read_run_sign
from memory_agent.signals.table import LayeredTable, SignalTable, is_own, row_of_type, rows_by_type

__all__ = [
    "Dropped",
    "EventReader",
    "LayeredTable",
    "NotTextError",
    "RunSign",
    "SignalTable",
    "id_of",
    "is_own",
    "read_part",
    "read_run_sign",
    "roots",
    "row_of_type",
    "rows_by_type",
    "run_id_of",
    "truncate",
]
