"""Clients that publish: `publisher` queues events and resends them until they are acknowledged.

`delivery` counts what is unacknowledged, `spool` keeps it on disk while the relay is away, and `submission` publishes
the events of one request without a queue. `relay` exports the public names; nothing is imported here, so that a
submission loads no spool.
"""
