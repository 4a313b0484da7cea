"""One user's memory: what a program opens, and what the daemon serves.

`Memory` joins the rooms below it: it ingests events (`ingest`), recalls, and answers the verbs of its namespaces
(`namespaces`, `runs`). Read `memory` first.
"""

from memory_agent.memory.memory import Memory

__all__ = ["Memory"]
