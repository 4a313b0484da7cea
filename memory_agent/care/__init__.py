"""Maintenance of a data folder: verify, back up, restore, encrypt, export, and erase while no daemon runs.

Read-only work uses LMDB snapshots, which other processes may take while the owner writes, so it needs no daemon.
"""
