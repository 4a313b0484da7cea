"""From a query to an answer: a `Search` made once per recall, and stages that take candidates and return candidates.

Read `query`, `dates`, `search`, `evidence`, `candidates`, `stages`, `selection`, `answer`, `shared`, `runs` and
`pipeline`, in which they follow each other; `context` renders an answer as a block for a prompt, `listing` pages
through memories without a query. Modules are imported one by one: hooks and clients need a few and no engine.
"""
