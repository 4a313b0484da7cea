"""One user's records in LMDB, and the columns in memory that are derived from them.

Read `environment`, `codec` and `stored_runs` (stored forms), `snapshot`, `batch` and `store` (the records); then
`changes`, `column`, `vector_table`, `passages`, `postings`, `columns` and `view` (the columns); then `archive`, which
combines both. Import the modules, not this package: the command line needs only `folders`, and the embedder only
`terms`.
"""
