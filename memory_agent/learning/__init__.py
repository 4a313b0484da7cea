"""Runs and what is learned from them, in the order in which they are processed.

`run_records` keeps the runs that events report, `run_links` relates them to recalls and to each other, `attribution`
and `outcomes` derive what a run used and how well it went, `lessons` and `learner` feed the result to `sona`, and
`consolidation` does what can wait: uses inferred from text (`overlap`), recurring `patterns`, a full relearn.
"""
