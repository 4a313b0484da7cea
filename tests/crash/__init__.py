"""The crash laboratory: kills real processes, fills their disks, fails their I/O, and checks the resulting history.

`python -m tests.crash` injects hundreds of faults; the tests in this folder inject a limited number of them. Rejected:
mocks, which fail only in the ways that their author imagined.
"""
