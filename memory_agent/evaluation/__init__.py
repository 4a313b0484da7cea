"""Measurements on real inputs: what a memory finds of what it should, how fast, and whether another run is better.

In order: `locomo`, `beam` and `jsonl` read a file into a `dataset`; `plan` says how to measure; `runs` brings the
events in (through the relay with `publishing` and `daemon_process`, or in this process) and asks; `trial` judges each
answer by `metrics`; `report` averages; `results` keeps what came back per question; `compare` holds two of those
against each other. Only the readers know a format. The inputs are no part of the project. What this does not do: tune
anything.
"""
