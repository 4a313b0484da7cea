"""Intake into the journal: acknowledged publishes, plain PUB emitters, and SQLite tables.

Read `group_commit` first, which acknowledges publishers, then `admission`, which decodes and masks events and checks
that their key permits their user. `relay` exports the public names. Nothing is imported here, so a command that masks
text or checks a table does not load the journal.
"""
