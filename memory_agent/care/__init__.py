"""Looks after a data folder: checks, rebuilds, compacts, encrypts, copies and exports it.

Parts that only read work on snapshots of the files while their owner writes: LMDB lets other processes read, so they do
not need the daemon.
"""
