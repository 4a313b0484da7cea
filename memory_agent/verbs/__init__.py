"""The verbs of a daemon: their table, the parameters of each, and the encoding of requests and replies.

Read `table` first. The package exports nothing, so that hooks and MCP servers, which must start fast, import `protocol`
without the table.
"""
