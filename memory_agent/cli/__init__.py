"""The command line: parse, confirm, call one public function, print.

`group` finds the command and turns errors into one line; read it first. `options` and `fields` make the options,
`access` opens a memory through the daemon or from its files, `render` prints results. Code that makes decisions or
changes files is in the packages below. The package exports nothing: each command imports only what it needs, so that it
starts fast.
"""
