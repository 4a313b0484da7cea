"""The Model Context Protocol: the tools of an agent's client, over HTTP (`/mcp`) and standard input."""
