"""One user's memory, which a program opens and the daemon serves.

`Memory` combines the packages below it. `ingest` stores events and `vectors` embeds them; `runs`, `sharing` and
`namespaces` are its further methods, as `memory.runs` and so on. Read `memory` first.
"""

from memory_agent.memory.memory import Memory

__all__ = ["Memory"]
