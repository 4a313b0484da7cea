"""The crash laboratory: real processes with kills, full disks and faulty I/O, and one checker of the resulting history.

`python -m tests.crash` is the long form, the tests beside this file the bounded one. Rejected: faults in mocks,
which fail only as imagined.
"""
