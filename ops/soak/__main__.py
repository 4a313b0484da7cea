"""Long runs on a real daemon: `python -m ops.soak burst --events 100000`, `python -m ops.soak soak --minutes 30`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ops.soak.burst import burst
from ops.soak.kills import kills
from ops.soak.soak import soak


def main() -> None:
    """Run one of them and print its figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m ops.soak", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("burst", help="many events at once, and recalls meanwhile")
    one.add_argument("--events", type=int, default=100_000)
    one.add_argument("--timeout", type=float, default=7_200.0, help="seconds until all must be worked off")
    other = kinds.add_parser("soak", help="mixed work for a long time; nothing may grow, nothing be left over")
    other.add_argument("--minutes", type=float, default=30.0)
    other.add_argument("--picture", type=Path, help="a file for memory over time (the extra `plot`)")
    kinds.add_parser("kills", help="each process killed in turn; nothing may be left over")
    options = parser.parse_args()
    if options.kind == "burst":
        figures = burst(options.events, options.timeout)
    elif options.kind == "kills":
        figures = kills()
    else:
        figures = soak(options.minutes, options.picture)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
