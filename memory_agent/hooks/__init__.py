"""Hooks of coding agents: what a client reports becomes events, and memories go into its prompt.

A client starts a process for each report and waits for it, so these files, and what they import, need the standard
library alone. In reading order: `inputs` (what a report says), `waiting` (events that no daemon has yet), `deadline`,
`answering` (one report, from standard input to the answer).
"""
