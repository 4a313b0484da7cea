"""Recall: a `Search` is made once per query, and stages take candidates and return candidates until there is an answer.

Read `pipeline`, which lists the stages, then `query`, `dates`, `search`, `evidence`, `candidates`, `stages`,
`selection`, `answer`, `shared`, `runs` and `context`, which renders an answer as a block for a prompt. Import the
modules directly, since clients and the command line need only a few of them and no engine.
"""
