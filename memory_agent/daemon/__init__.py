"""The service that hosts the memories of many users in several processes.

An event passes through `dispatcher`, `lane`, `hosts` and `host`; a request enters at `service` and joins this path at
`hosts`. `components` connects them, `actors` runs hosts in Ray, and `process` starts, watches and stops everything.
Read `components` first. Import modules, not this package: `actors` takes a second to import Ray.
"""
