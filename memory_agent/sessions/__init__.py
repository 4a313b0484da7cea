"""Find the session files of coding agents and chats, read each format, and turn sessions into events.

Read `entries` first (what a reader yields), then one format such as `claude_code`; `finding` recognises formats and
`importing` runs an import. Import the modules directly, not this package, since hooks must start without `msgspec`.
"""
