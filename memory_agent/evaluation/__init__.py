"""Measures a memory on real data: the evidence it finds, its latency, and whether one run is better than another.

In reading order: `locomo`, `beam`, `swe` and `jsonl` read a file into a `dataset`; `runs` ingests the events (through a
`daemon_process`, or embedded) and asks the questions; `trial` scores each answer with `metrics`; `report` averages;
`results` stores the answer to each question; `compare` compares two such files. Only the readers know file formats.
"""
