"""What users share: the store of published items, who may see them, and what is known of their worth."""

from __future__ import annotations

from memory_agent.knowledge.store import Knowledge

__all__ = ["Knowledge"]
