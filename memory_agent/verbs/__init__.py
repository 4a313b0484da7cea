"""The verbs of a daemon: their table, the parameters of each, and the encoding of requests and replies.

The clients and the HTTP interface are derived from the table; commands and MCP tools are written by hand, and take
their options from the parameters. Read `table` first. The package exports nothing, so that hooks and MCP servers, which
must start fast, import `protocol` without the table.
"""
