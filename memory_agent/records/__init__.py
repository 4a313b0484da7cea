"""The values that callers exchange with a memory: memories and answers, runs and feedback, shared items.

Each is an immutable struct that validates what it is given. Read `memories` first.
"""
