"""Measures a memory on real inputs: evidence found, latency, and whether another run is better.

In reading order: `locomo`, `beam` and `jsonl` read a file into a `dataset`; `runs` ingests the events (through a
`daemon_process`, or embedded) and asks the questions; `trial` judges each answer by `metrics`; `report` averages;
`results` stores what came back for each question; `compare` compares two such files. Only the readers know a format.
"""
