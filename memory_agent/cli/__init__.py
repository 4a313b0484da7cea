"""The command line: parse, confirm, call one public function, print.

Start with `group`, which finds the command and turns errors into one line. `options` and `fields` define the options,
`access` opens a memory through the daemon or from its files, and `render` prints results. Code that makes decisions or
changes files is in the lower-level packages. The package exports nothing: each command imports only what it needs, so
that it starts fast.
"""
