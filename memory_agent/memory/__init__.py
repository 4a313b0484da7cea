"""The memory of one user, which a program can open and the daemon serves.

`Memory` combines the packages below it; read `memory` first. `ingest` stores events and `vectors` embeds them;
`browsing` reads memories without a query.
`Memory.runs`, `Memory.shared`, `Memory.sona` and `Memory.care` are in `runs`, `sharing` and `namespaces`;
`Memory.erasure` is in the package `erasure`.
"""

from memory_agent.memory.memory import Memory
from memory_agent.memory.namespaces import Care, Sizes, Sona
from memory_agent.memory.runs import Runs, feedback_payload
from memory_agent.memory.sharing import Shared

__all__ = ["Care", "Memory", "Runs", "Shared", "Sizes", "Sona", "feedback_payload"]
