"""The verbs of a daemon: their table, the parameters of each, and the encoding of requests and replies.

Read `table` first. Hooks and MCP servers, which must start fast, import `protocol` without the table.
"""
