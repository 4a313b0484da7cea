"""`serve`: the daemon, in the foreground."""

from __future__ import annotations

import click
import msgspec

from memory_agent.cli.options import UNUSED, Target, options_where_user


@click.command(short_help="Run the daemon: relay, embedder, Ray, gateway.")
@click.option(
    "--listen",
    multiple=True,
    metavar="tcp://127.0.0.1:PORT",
    help="Also answer there, besides the socket file; beyond loopback as curve+tcp://HOST:PORT. Repeatable.",
)
@options_where_user(UNUSED)
def serve(target: Target, listen: tuple[str, ...]) -> None:
    """Run relay, embedder, Ray and gateway until SIGTERM or Ctrl-C.

    Prints one JSON line with the endpoints when it is ready, and logs to standard error. Emitters publish to the
    endpoint `relay`; `recall` and the other verbs find the daemon by its data folder.

    \b
    Examples:
      memory-agent serve
      memory-agent serve --data-dir /srv/memory --listen tcp://127.0.0.1:7420
      memory-agent serve --set daemon.idle_sleep_s=60 2> daemon.log
    """
    from memory_agent.daemon.process import serve as serve_daemon  # Ray takes a second to import
    from memory_agent.log import configure_logging

    configure_logging(target.settings.log_level)
    daemon = msgspec.structs.replace(target.settings.daemon, listen=target.settings.daemon.listen + listen)
    settings = msgspec.structs.replace(target.settings, daemon=daemon, data_dir=str(target.data_dir))
    raise SystemExit(serve_daemon(settings, target.data_dir))
