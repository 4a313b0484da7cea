"""Events to records, without a store: which events are kept, their text, and the runs and outcomes that they report.

`table` maps event types to memories. `reader` makes the record of an event, with text from `payloads` (`language`
recognises text in unknown fields) and the outcome from `verdicts`; `runs` reads what an event reports about a run. Read
`table` first.
"""
