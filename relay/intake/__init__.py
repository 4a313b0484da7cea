"""The ways into the journal: acknowledged publishes, plain PUB emitters, and tables in SQLite.

Read `group_commit` first, which acknowledges publishers, then `admission`, which turns bytes into a masked event of a
permitted user. `relay` exports the public names; nothing is imported here, so that a command that masks text or checks
a table loads no journal.
"""
