"""One user's records, and what is derived from them.

`environment` opens LMDB; `codec`, `snapshot`, `batch` and `store` hold the records. `vector_index` and `lexicon` (words
and the columns of filters) are derived from them, and `derived` keeps these current. The layers above use `archive`,
which combines all three.
"""
