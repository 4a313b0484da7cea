"""The memory of one user, which a program can open and the daemon serves. Read `memory` first."""

from memory_agent.memory.memory import Memory
from memory_agent.memory.namespaces import Care, Sizes, Sona
from memory_agent.memory.runs import Runs, feedback_payload
from memory_agent.memory.sharing import Shared

__all__ = ["Care", "Memory", "Runs", "Shared", "Sizes", "Sona", "feedback_payload"]
