"""The store of shared items: access policies, usage statistics, and changes for followers.

Read `records.shared` (the values), `records.shared_requests` (the requests) and `store` (which answers requests) first.
`items` defines the stored form of an item, `figures` the statistics of a version and their release, `voters` whose
contributions are one vote, `offers` the patterns of many users, `removal` permanent removal, and `clients` access from
other processes. The values and requests are in a lower package, because a user's memory (`memory.sharing`) sends them
and the store is itself a memory.
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
