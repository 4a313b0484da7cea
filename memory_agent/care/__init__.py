"""Maintenance of a data folder: verify, back up, restore, encrypt, export, and erase while no daemon runs.

What only reads takes LMDB snapshots, which other processes may do while the owner writes, so no daemon has to be asked.
"""
