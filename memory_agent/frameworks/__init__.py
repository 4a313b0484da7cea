"""Adapters of a memory for agent frameworks, each one file that imports its framework.

Read `agent_run` first: what an adapter recalls when an agent begins, and how the run's end reports whether that helped.
`ops/FRAMEWORKS.md` has an example of each adapter. An adapter needs the extra of its name, such as
`langgraph`; importing an adapter imports its framework, and importing this package none.
"""
