"""Past sessions of coding agents and chats: finds their files, reads each format, and turns them into events.

Read `entries` first (what a reader yields), then one format such as `claude_code`; `finding` recognises formats and
`importing` runs an import. Importers name the module they need, since a hook must start without `msgspec`.
"""
