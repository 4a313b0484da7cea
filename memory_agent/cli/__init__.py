"""The command line: parse, confirm, call one public function, print.

`group` finds the command and turns errors into one line, `options` has what commands share, `access` opens a memory
through the daemon or on its files, `render` prints. Decisions and file changes belong below (`care`, `client`).
"""
