"""A query in, memories out.

In reading order: `query` (the checked request), `pipeline` (the list of stages), `dates`, `search` with
`query_vectors`, `candidates` with `fusion`, `neighbours`, `learned`, `duplicates`, `selection`, `answering` with
`highlights`, and `context` (the answer as a block for a prompt).
"""
