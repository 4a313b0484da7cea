"""The crash laboratory: real processes, killed, starved and lied to; one checker says what became of the history.

`python -m tests.crash` is the long form, the tests beside this file the bounded one. What this does not do: say whether
a part is right while nothing goes wrong; the other tests do. Rejected: faults in mocks, which fail as we imagine it.
"""
