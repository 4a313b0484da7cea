"""The crash laboratory: real processes with kills, full disks and faulty I/O, and a checker of the resulting history.

`python -m tests.crash` injects hundreds of faults; the tests in this folder run a bounded part of it. Rejected: mocks,
which fail only in the ways that their author imagined.
"""
