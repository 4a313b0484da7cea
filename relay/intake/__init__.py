"""Intake into the journal: acknowledged publishes, plain PUB emitters, and SQLite tables.

Read `group_commit` first, then `admission`. Nothing is imported here, so a command that masks text does not load the
journal.
"""
