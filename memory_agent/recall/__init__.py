"""A query in, memories out.

In reading order: `query` (the checked request), `pipeline` (the whole path), `dates`, `query_vectors`, `ranked_search`
with `candidates`, `filtered_search`, `scoring` and `boosts`, `selection`, `answering`, and `context` (the answer as a
block for a prompt).
"""
