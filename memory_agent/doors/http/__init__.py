"""The HTTP interface: each verb as `POST /v1/VERB` with JSON, and events as server-sent events.

Paths, request bodies, results and the description at `/openapi.json` are derived from the verb table. Start with `app`,
which contains the routes. Requests pass through the same reception as those over ZeroMQ.
"""
