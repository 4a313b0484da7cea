"""Recall: each query creates one `Search`, whose candidates pass through a series of stages to become the answer.

Read `pipeline`, which lists the stages, then `query`, `dates`, `search`, `evidence`, `candidates`, `stages`,
`selection`, `answer`, `shared`, `runs` and `context`, which renders an answer as a block for a prompt. Import the
modules directly, since clients and the command line need only a few of them and no engine.
"""
