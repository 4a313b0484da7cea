"""Events to records, without a store: which events are kept, their text, and the runs and outcomes that they report.

`table` maps event types to memories. `reader` makes the record of an event, with text from `payloads` (`language`
recognises text in unknown fields) and the outcome from `verdicts`; `runs` reads what an event reports about a run. Read
`table` first.
"""

from memory_agent.signals.reader import Dropped, EventReader
from memory_agent.signals.runs import RunSign, read_run_sign
from memory_agent.signals.table import SignalTable

__all__ = ["Dropped", "EventReader", "RunSign", "SignalTable", "read_run_sign"]
