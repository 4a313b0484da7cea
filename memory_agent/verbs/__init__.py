"""What can be asked of a daemon: the table of verbs, the parameters of each, and their form in bytes.

The clients, the command line and the tools of MCP follow from the table. Read `table` first.
"""
