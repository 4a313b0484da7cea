"""The HTTP interface: each verb as `POST /v1/VERB` with JSON, and events as server-sent events. Read `app` first.

Paths, request bodies, results and the description at `/openapi.json` are derived from the verb table.
"""
