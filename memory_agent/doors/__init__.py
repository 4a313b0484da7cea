"""The daemon's interfaces: ZeroMQ, HTTP and MCP. Each passes its requests to the same `reception`.

Read `reception` first, then `zmq`, the shortest door. Import the modules directly.
"""
