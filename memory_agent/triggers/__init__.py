"""Recalls without a request: events that cause one, and the blocks they publish.

`table` maps event types to triggers, `asking` makes the query of an event, recalls and renders the block, `block` is
the block and its event. `daemon.reactor` drives all three. Read `table` first.
"""
