"""The verbs of a daemon: their table, the parameters of each, and the encoding of requests and replies.

The clients, the command line and the MCP tools follow from the table. Read `table` first. There is no face: hooks and
MCP servers, which must start fast, import `protocol` without the table.
"""
