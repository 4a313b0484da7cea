"""Memories as a service for many users and processes.

An event comes in through `dispatcher`, `lane`, `hosts`, `actors`, `host`; a query through `gateway`, `service`,
`hosts`, `actors`, `host`. `process` starts, watches and stops all of it.
"""
