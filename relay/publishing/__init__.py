"""Clients that publish: `publisher` queues events and resends them until they are acknowledged.

`delivery` tracks unacknowledged events, `spool` keeps them on disk while the relay is unreachable, and `submission`
publishes the events of one request without a queue. Nothing is imported here, so `submission` does not load the spool.
"""
