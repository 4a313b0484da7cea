"""The command line: parse, confirm, call one public function, print.

Start with `group`. `options` and `fields` define the options, `access` opens a memory, and `render` prints results. The
package exports nothing: each command imports only what it needs, so that it starts fast.
"""
