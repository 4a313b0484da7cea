"""Complete erasure: nothing is left in any file, an interrupted erasure is completed, and a receipt states the result.

Read `request` first, the values of an erasure. Then `logs` (the intent and the history on disk), `retention` (what has
expired), `forgetting` (deletion from the store), `eraser` (deletion from all files) and `user_removal` (a user's
folder). Import the modules: this package loads none, because clients need `request` without the engines.
"""
