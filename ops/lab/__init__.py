"""Research protocols: does recall improve from how runs end, by how much, and when does it not?

`airline` reads agent runs and `histories` splits questions; `arms` lists what is compared, `rocchio` is a baseline that
no setting gives. `stores` ingests the inputs once and `course` teaches one arm on a copy. `trials`, `forgetting`,
`gate_streams` and `planning` are the experiments, `protocol` runs them all in worker processes, `gains` computes
differences with intervals, `report` holds them against their targets. Everything is asked of the real `Memory`; no
ranking is copied here.
"""
