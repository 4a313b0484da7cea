"""The door over HTTP: every verb as `POST /v1/VERB` with JSON, and what memory says as server-sent events.

All of it follows from the table of verbs: paths, bodies, results, the description at `/openapi.json`. The reception
admits the requests, as those over ZeroMQ.
"""
