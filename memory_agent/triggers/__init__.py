"""Recalls triggered by events instead of requests, and the blocks that are published as a result.

`table` maps event types to triggers, `document_query` builds a document's query, `reactions` recalls and renders the
block, and `block` defines the block and its event. Import the modules directly, since clients need only `block`.
"""
