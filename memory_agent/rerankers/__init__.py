"""Models that select the memories of an answer: a judge behind an HTTP API, or a caller's own function.

Read `protocol` first, then `judge`. Without a server in the settings, nothing here is used.
"""

from memory_agent.rerankers.chat_model import SERVERS, ChatModel, endpoint_of
from memory_agent.rerankers.judge import Judge, check_judge, open_reranker
from memory_agent.rerankers.protocol import Reranker, Selection, Snippet

__all__ = [
    "SERVERS",
    "ChatModel",
    "Judge",
    "Reranker",
    "Selection",
    "Snippet",
    "check_judge",
    "endpoint_of",
    "open_reranker",
]
