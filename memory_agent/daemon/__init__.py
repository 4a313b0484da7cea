"""The service that hosts the memories of many users in several processes.

An event passes through `dispatcher`, `lane`, `hosts`, `actors` and `host`; a request enters at `service` and joins it
at `hosts`. `process` starts, watches and stops all parts. Read `dispatcher` first.
"""
