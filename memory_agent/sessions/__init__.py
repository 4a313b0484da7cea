"""Find the session files of coding agents and chats, read each format, and turn sessions into events.

Read `entries` first, then one format such as `claude_code`. Import only the modules that you need: hooks must start
without `msgspec`.
"""
