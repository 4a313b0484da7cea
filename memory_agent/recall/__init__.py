"""From a query to an answer: a `Search` made once per recall, and stages that take candidates and return candidates.

Read `pipeline`, which lists the stages, then `query`, `dates`, `search`, `evidence`, `candidates`, `stages`,
`selection`, `answer`, `shared`, `runs` and `context`, which renders an answer as a block for a prompt. Modules are
imported one by one, since clients and the command line need a few of them and no engine.
"""
