"""The Model Context Protocol (MCP), by which coding agents call tools: over HTTP (`/mcp`) and standard input.

`door` answers messages; read it first. `tools` defines the tools and `answers` renders their results. `stdio` is the
process that a coding agent starts; it imports only `messages` and `introduction`, so import modules, not this package.
"""
