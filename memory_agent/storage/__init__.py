"""One user's records in LMDB, and the columns in memory that are derived from them.

Read in this order: `environment` (LMDB, keys), `codec` and `stored_runs` (stored forms), `snapshot`, `batch` and
`store` (the records), `changes` (the change log), `column`, `vector_table`, `vector_graph`, `passages`, `postings` and
`columns` (the columns), `view` (their published state), `derived` (their file), and `archive`, which combines store and
columns for the layers above. Separate from these are `languages` and `terms` (text as words), `folders` and
`folder_moves` (users' folders) and `owners` (the owners of runs). Import the modules, not this package: the command
line needs only `folders` and the embedder only `terms`, and neither should load LMDB or usearch.
"""
