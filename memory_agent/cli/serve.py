"""`serve` runs the daemon in the foreground. This file does not import rich, which takes 0.1 s of processor time."""

from __future__ import annotations

import click
import msgspec

from memory_agent.cli.options import UNUSED, Target, options_where_user


@click.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="tcp://127.0.0.1:PORT",
    help="Also listen at this endpoint; beyond loopback, use curve+tcp://HOST:PORT. Repeatable.",
)
@click.option("--light", is_flag=True, help="Run as one process without Ray, for one person; needs 200 MB.")
@click.option(
    "--on-demand",
    is_flag=True,
    help="Run as clients start it: --light, with standard input closed, until it is idle (daemon.idle_end_min).",
)
@options_where_user(UNUSED)
def serve(target: Target, listen: tuple[str, ...], light: bool, on_demand: bool) -> None:
    """Run the relay, the embedder, the hosts and the gateway until SIGTERM or Ctrl-C.

    Prints one JSON line with the endpoints when it is ready, and logs to standard error. On a terminal, it instead
    prints its endpoints and the next steps as text, and logs only warnings (--set log_level=debug logs everything).
    Publishers use the endpoint `relay`; `recall` and the other commands find the daemon by its data folder.

    \b
    Examples:
      memory-agent serve
      memory-agent serve --light
      memory-agent serve --data-dir /srv/memory --listen tcp://127.0.0.1:7420
      memory-agent serve --set daemon.idle_sleep_s=60 2> daemon.log
    """
    import faulthandler

    from memory_agent.daemon.idle_end import forget_client
    from memory_agent.daemon.process import serve as serve_daemon
    from relay.log import configure_logging

    if on_demand:
        forget_client()
    own = target.settings.daemon
    daemon = msgspec.structs.replace(own, listen=own.listen + listen, light=own.light or light or on_demand)
    configure_logging(target.settings.log_level, target.layout.log if daemon.light else None)
    faulthandler.enable(2)
    settings = msgspec.structs.replace(target.settings, daemon=daemon, data_dir=str(target.data_dir))
    raise SystemExit(serve_daemon(settings, target.data_dir, on_demand=on_demand))
