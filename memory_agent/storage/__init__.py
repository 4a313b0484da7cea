"""One user's records, and what is derived from them.

`environment` opens LMDB; `codec`, `snapshot`, `batch` and `store` hold the records. `columns`, with a `vector_table`
and `postings`, are derived from them, and `derived` keeps these current. The layers above use `archive`, which combines
both.
"""
