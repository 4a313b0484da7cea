"""Hooks of coding agents: turn an agent's reports into events, and add memories to its prompts. Read `answering` first.

The agent starts a process for each report and waits for it, so these modules import only the standard library.
"""
