"""Immutable structs for the values that callers exchange with a memory, and checks of arguments. No file access.

Read `memories` first (memories, filters, answers), then `trajectories` (runs, feedback), `shared` (shared items; rules
for their content in `shared_content`, requests in `shared_requests`), `arguments` (checks), `metadata` (filters by
metadata) and `embedded` (vectors of a text). Import the modules directly: the package loads none of them, so that a
client starts without numpy.
"""
