"""Does recall get better from how runs end, by how much, and when not? The protocol behind `eval sona`.

In order: `splits` says which questions teach and which test, `signals` what a run says it used, `arms` what is
compared, `rocchio` the one of them that no setting gives. `stores` brings the inputs in once; `course` teaches one arm
on a copy and asks; `trials`, `forgetting`, `vigil` and `planning` are the experiments, `workers` spreads them over
processes, `protocol` does them all. `gains` holds arms against each other, `targets` against what was promised;
`report` is what the verb prints, `plot` draws. Everything is asked of the real `Memory`: no ranking is copied here.
What this does not do: choose a setting, or tell the learner what is right other than by the feedback that a user could
give.
"""
