"""Immutable structs for the values that callers exchange with a memory, and checks of arguments. No file access.

Read `memories` first. Import the modules directly: the package loads none of them, so that a client starts without
numpy.
"""
