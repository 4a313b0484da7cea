"""Intake into the journal: acknowledged publishes, plain PUB emitters, and SQLite tables.

Read `group_commit` first, which acknowledges publishers, then `admission`, which turns bytes into a masked event of a
permitted user. `relay` exports the public names. Nothing is imported here, so a command that masks text or checks a
table does not load the journal.
"""
