"""What users share: the store of published items, who may see them, and the feedback statistics of each.

Read `items` first, the stored form of an item. Then `figures` and `stored_figures` (statistics and their release),
`publish_log` (what followers receive), `offers` (patterns of many users), `removal`, `store`, which answers all
requests, and `clients`, through which other processes reach it. The requests and their values are in
`records.shared_requests` and `records.shared`, so that a user's memory depends on neither the store nor its engines.
"""

from __future__ import annotations

from memory_agent.knowledge.clients import KnowledgeOnFiles, RemoteKnowledge
from memory_agent.knowledge.items import all_offerers, check_item, file_of_item
from memory_agent.knowledge.publish_log import add_published
from memory_agent.knowledge.store import Knowledge, SearchQuota, faults_of_knowledge

__all__ = [
    "Knowledge",
    "KnowledgeOnFiles",
    "RemoteKnowledge",
    "SearchQuota",
    "add_published",
    "all_offerers",
    "check_item",
    "faults_of_knowledge",
    "file_of_item",
]
