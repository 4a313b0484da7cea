"""Memories as a service for many users and processes.

An event comes in through `dispatcher`, `lane`, `hosts`, `host_connection`, `host_server`, `host`; a query through
`service`, then as an event from `hosts` on. `actors` starts and supervises the host processes; `process` starts,
watches and stops all of it.
"""
