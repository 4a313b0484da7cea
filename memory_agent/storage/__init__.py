"""One user's records, and what is derived from them.

`environment` and `fence` are LMDB under our rules and who may write; `codec`, `snapshot`, `batch` and `store` are the
truth; `index` (vectors) and `lexicon` (words, and the columns of filters) are derived, and `derived` keeps them in
step. `archive` is the three together, as the layers above use them.
"""
