"""Memories that people and other tools keep in files: plain ones as JSON, and the sections of Markdown documents.

Each is stored under an id of its own, so that a second import replaces what changed and leaves the rest alone.
"""
