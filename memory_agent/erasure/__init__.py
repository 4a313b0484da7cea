"""Complete erasure: nothing is left in any file, an interrupted erasure is completed, and a receipt states the result.

Read `request` (the values of an erasure) first, then `logs` (the intent and the history on disk), `retention` (which
memories have expired), `forgetting` (deletion from the store), `eraser` (deletion from all files) and `user_removal`
(deletion of a user's folder). Import the modules directly: the package loads none of them, because clients need
`request` without the engines.
"""
