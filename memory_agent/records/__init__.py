"""The values that callers exchange with a memory, as immutable structs, and checks of arguments. Pure: no files.

Read `memories` first (memories, filters, answers), then `trajectories` (runs, feedback), `shared` (shared items; rules
for their content in `shared_content`, requests in `shared_requests`), `arguments` (checks), `metadata` (filters by
metadata) and `embedded` (vectors of a text). Import the modules: this package loads none, so that a client starts
without numpy.
"""
