"""A query in, memories out. Read `query` (what was asked), `recollection` (the whole of it), `dates`,
`query_vectors`, `ranked_search` with `candidates`, `sieve`, `scoring`, `contiguity` and `coverage`, then `selection`,
`answering` with `explanation`, and `context` (the answer as a block for a prompt), in this order."""
