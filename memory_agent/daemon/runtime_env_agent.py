"""Waits for the first request to Ray's agent for runtime environments, then becomes that agent.

`python -I -S runtime_env_agent.py ADDRESS PORT_FILE COMMAND...` is a separate process, which imports only the standard
library: the agent takes 50 MB and half a second of processor time to start (measured with Ray 2.60), and only tasks
with a `runtime_env` need it.
"""

from __future__ import annotations

import os
import select
import socket
import sys

_STDIN = 0
_BECOME = """
import os, runpy, socket, sys
listener, bind = socket.socket(fileno=int(sys.argv[1])), socket.socket.bind
listener.set_inheritable(False)
def take(own, address):
    if address == listener.getsockname():
        os.dup2(listener.fileno(), own.fileno(), inheritable=False)
    else:
        bind(own, address)
socket.socket.bind = take
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the agent's program. The socket that it binds to the agent's port becomes the socket that already listens, which
has the connection with the first request.
"""
_PORT = "--runtime-env-agent-port="


def main(address: str, port_file: str, *command: str) -> None:
    """Listen, and write the port to a file, for which the raylet waits. Wait for the first connection; end if standard
    input, the raylet's pipe, is closed first.
    """
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listener.getsockname()[1]
    with open(f"{port_file}.new", "w", encoding="ascii") as file:
        file.write(str(port))
    os.replace(f"{port_file}.new", port_file)
    while True:
        ready, _, _ = select.select([listener.fileno(), _STDIN], [], [])
        if listener.fileno() in ready:
            break
        if not os.read(_STDIN, 4_096):
            return
    os.set_inheritable(listener.fileno(), True)
    program = next(place for place, word in enumerate(command) if word.endswith(".py"))
    python, *options = command[:program]
    arguments = [f"{_PORT}{port}" if word.startswith(_PORT) else word for word in command[program:]]
    os.execv(python, [python, *options, "-P", "-c", _BECOME, str(listener.fileno()), *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
