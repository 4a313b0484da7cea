"""Recalls without a request: events that cause one, and the blocks they publish.

`table` maps event types to triggers, `document_query` makes the query of a document, `reactions` recalls and renders
the block, and `block` defines the block and its event; `daemon.reactor` drives them. Read `table` first. Modules are
imported one by one, since clients need `block` alone.
"""
