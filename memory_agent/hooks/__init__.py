"""Hooks of coding agents: turn an agent's reports into events, and add memories to its prompts.

The agent starts a process for each report and waits for it, so these modules and their imports use only the standard
library, and the package exports nothing. Start with `answering`, which handles one report from standard input to the
answer. `inputs` parses reports, and `waiting` stores events that no daemon has received yet.
"""
