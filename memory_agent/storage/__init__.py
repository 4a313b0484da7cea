"""One user's records in LMDB, and the columns in memory that are derived from them.

Suggested reading order: `codec`, `snapshot`, `batch` and `store` (the records), then `changes`, `column`, `columns` and
`view` (the columns), then `archive`, which combines both. Import the modules, not this package: the command line needs
only `folders`.
"""
