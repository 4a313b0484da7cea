"""Hooks of coding agents: turn the reports of a coding agent into events, and add memories to its prompts.

The agent starts a process for each report and waits for it, so these modules and their imports need only the standard
library, and the package exports nothing. Read `answering` first: one report, from standard input to the answer.
`inputs` parses reports, and `waiting` keeps events that no daemon has received yet.
"""
