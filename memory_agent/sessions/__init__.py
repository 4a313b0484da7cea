"""Find the session files of coding agents and chats, read each format, and turn sessions into events.

Read `entries` first (what a reader yields), then one format such as `claude_code`; `finding` recognises formats and
`importing` runs an import. Import the module you need, not this package, since a hook must start without `msgspec`.
"""
