"""Research protocols that measure whether, when and by how much learning from run outcomes improves recall.

`airline` reads agent runs, and `histories` splits questions. `arms` lists what is compared; `rocchio` is a baseline
that no setting provides. `stores` ingests the inputs once, and `course` teaches one arm on a copy. `trials`,
`forgetting`, `gate_streams`, `recurring_users`, `planning` and `instant` are the experiments; `protocol` runs them in
worker processes. `gains` computes differences with intervals, and `report` compares them with their targets. All
queries use the real `Memory`; no ranking is reimplemented here.
"""
