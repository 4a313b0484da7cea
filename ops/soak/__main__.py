"""Long-running tests of a real daemon, such as `python -m ops.soak burst --events 100000`."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from ops.soak.burst import burst
from ops.soak.hosts import hosts
from ops.soak.kills import kills
from ops.soak.load_page import load_page
from ops.soak.soak import soak

_PAGE = Path(__file__).parents[1] / "bench" / "load.md"


def main() -> None:
    """Run one test and print its results as JSON."""
    parser = argparse.ArgumentParser(prog="python -m ops.soak", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("burst", help="publish many events at once, with concurrent recalls")
    one.add_argument("--events", type=int, default=100_000)
    one.add_argument("--timeout", type=float, default=7_200.0, help="seconds within which all events must be processed")
    one.add_argument("--page", type=Path, nargs="?", const=_PAGE, help="write the results to ops/bench/load.md")
    other = kinds.add_parser("soak", help="run mixed work for a long time; nothing may leak or be left behind")
    other.add_argument("--minutes", type=float, default=30.0)
    other.add_argument("--picture", type=Path, help="plot memory use to this file (requires the extra `plot`)")
    kinds.add_parser("kills", help="kill each process in turn; nothing may be left behind")
    hosts_kind = kinds.add_parser("hosts", help="measure the memory that each stopped host leaves in Ray's processes")
    hosts_kind.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    if options.kind == "burst":
        figures = burst(options.events, options.timeout)
        if options.page is not None:
            options.page.write_text(load_page(figures, datetime.now(UTC).date()), encoding="utf-8")
    elif options.kind == "kills":
        figures = kills()
    elif options.kind == "hosts":
        figures = hosts(options.count)
    else:
        figures = soak(options.minutes, options.picture)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
