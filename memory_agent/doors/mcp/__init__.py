"""The Model Context Protocol: what an agent's client lists and calls, over HTTP (`/mcp`) and standard input."""
