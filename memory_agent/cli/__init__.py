"""The command line: one file for each verb or family of verbs.

`group` finds the verb and turns errors into one line, `options` holds what every verb takes, `access` chooses between
the daemon and the files, `render` prints. What this package does not do: decide anything that the Python interface
could not; every verb is a few calls of it.
"""
