"""Complete erasure: removes every trace from all files, resumes after an interruption, and returns a receipt.

Read `request` (the values of an erasure) first, then `logs` (the intent and the history on disk), `retention` (which
memories have expired), `forgetting` (deletion from the store), `eraser` (deletion from all files), `user_removal`
(deletion of a user's folder), `hook_events` (events that wait in files) and `copies` (what a receipt names). Import the
modules directly: the package imports none of them, because clients need `request` without numpy and usearch.
"""
