"""The store of shared items: access policies, usage statistics, and changes for followers.

Read `records.shared`, `records.shared_requests` and `store` first. The values and requests are in a lower package,
because a user's memory sends them and because the store itself is a memory.
"""

from __future__ import annotations

from memory_agent.knowledge.clients import KnowledgeOnFiles, RemoteKnowledge
from memory_agent.knowledge.items import all_offerers, check_item, file_of_item
from memory_agent.knowledge.publish_log import add_published
from memory_agent.knowledge.store import Knowledge, faults_of_knowledge

__all__ = [
    "Knowledge",
    "KnowledgeOnFiles",
    "RemoteKnowledge",
    "add_published",
    "all_offerers",
    "check_item",
    "faults_of_knowledge",
    "file_of_item",
]
