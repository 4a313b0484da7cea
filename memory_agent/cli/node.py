"""`join` makes this machine part of a daemon's cluster; `leave` removes it from the cluster."""

from __future__ import annotations

import socket

import click

from memory_agent.cli.access import open_client
from memory_agent.cli.failure import Failure
from memory_agent.cli.options import Target, daemon_options_without_user, key_options

_LEAVE_WITHIN_S = 150.0


@click.command()
@click.argument("address")
@click.option("--name", required=True, help="The machine's name in the cluster: letters, digits and dashes.")
@click.option("--listen", metavar="IP", help="This machine's address. Default: the address used to reach ADDRESS.")
@key_options
def join(target: Target, address: str, name: str, listen: str | None) -> None:
    """Join the cluster of the daemon at ADDRESS, and host users until SIGTERM, Ctrl-C or `memory-agent leave`.

    ADDRESS is an endpoint of the daemon: curve+tcp://HOST:PORT with the key file of a CURVE key (scope `join`, for all
    users), or the socket file or loopback endpoint of a daemon on this machine. The daemon needs the setting
    cluster.listen. This machine needs its own data folder, the same model, the same versions of Ray and Python, and a
    version of this program with the same protocol. Files named in the daemon's settings must have the same paths on
    this machine. Prints one JSON line when it has joined, and rejoins automatically after a restart of the daemon.

    \b
    Examples:
      memory-agent join curve+tcp://10.0.0.5:7421 --name worker-1 --key-file join.key
      memory-agent join curve+tcp://10.0.0.5:7421 --name worker-2 --listen 10.0.0.7 --key-file join.key
    """
    from memory_agent.client import find_daemon  # imports sockets
    from memory_agent.daemon.node import Joining, serve_node
    from relay.access import local_identity
    from relay.log import configure_logging

    configure_logging(target.settings.log_level)
    found = find_daemon(target.data_dir, address, target.token, target.key_file)
    local = local_identity(address).file  # a daemon on this machine has its token beside its socket
    joining = Joining(
        endpoint=address,
        identity=found.identity,
        token=lambda: found.named_token or (local.read_text().strip() if local is not None else ""),
        name=name,
        address=listen or _own_address(address),
    )
    raise SystemExit(serve_node(joining, target.settings, target.layout))


@click.command()
@click.argument("name", required=False)
@daemon_options_without_user
def leave(target: Target, name: str | None) -> None:
    """Remove the machine NAME from the cluster, after its users have moved away. Run this command on the daemon's
    machine. Without NAME, this machine leaves; --data-dir names its data folder.

    \b
    Examples:
      memory-agent leave worker-1
      memory-agent leave --data-dir /srv/memory-node
    """
    if name is not None:
        from memory_agent.verbs.table import BY_METHOD  # imports the records

        with open_client(target) as client:
            client.send(BY_METHOD["leave"].call({"name": name}))
        return
    from memory_agent.daemon.place import is_node
    from memory_agent.daemon.stopping import stop_daemon

    if not target.layout.daemon_runs() or not is_node(target.layout.run):
        raise Failure("usage", f"no machine joined with {target.data_dir}; to remove another machine, specify NAME")
    stop_daemon(target.layout, _LEAVE_WITHIN_S)


def _own_address(endpoint: str) -> str:
    """Return the address from which this machine reaches the daemon. Nothing is sent."""
    scheme, _, place = endpoint.partition("://")
    host, _, port = place.rpartition(":")
    if scheme == "ipc":
        raise click.UsageError("specify --listen IP")
    try:
        kind, _, _, _, to = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(to)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{endpoint} cannot be reached ({error}); specify --listen IP") from error
