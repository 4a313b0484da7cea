"""Adapters that connect a memory to agent frameworks. Each file imports its framework, and needs the extra of the same
name.

Read `agent_run` first. `ops/FRAMEWORKS.md` has an example of each adapter.
"""
