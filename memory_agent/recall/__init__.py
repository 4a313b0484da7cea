"""A query in, memories out. Read `inquiry` (what was asked), `query_vectors`, `candidates`, `ranking`, `contiguity`,
`recollection` (the answer), and `context` (the answer as a block for a prompt), in this order."""
