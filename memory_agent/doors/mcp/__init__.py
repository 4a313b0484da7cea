"""The Model Context Protocol (MCP), with which coding agents call tools over HTTP (`/mcp`) or standard input.

Read `door` first. `stdio` is the process that a coding agent starts; it imports only `messages` and `introduction`.
Import the modules directly, so that `stdio` loads nothing else.
"""
