"""Long-running tests of a real daemon: `python -m ops.soak --hours 8`, or one of the commands.

If no command is given, many simulated users work for hours while the daemon is alternately stopped and killed
(`soak.py`). A soak may be run in parts: `--resume` appends to the record in a folder. `--report` writes a record's
report. SIGTERM ends a part.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from ops.soak.burst import burst
from ops.soak.hosts import hosts
from ops.soak.kills import kills
from ops.soak.load_page import load_page
from ops.soak.report import write_report
from ops.soak.soak import Plan, soak

_REPORT = Path(__file__).with_name("REPORT.md")
_PAGE = Path(__file__).parents[1] / "bench" / "load.md"


def main() -> int:
    """Run one test, and print its results."""
    options = _parser().parse_args()
    if options.report:
        write_report(options.report, _REPORT)
        return 0
    if options.kind is None:
        return _soak(options)
    if options.kind == "burst":
        figures = burst(options.events, options.timeout)
        if options.page is not None:
            options.page.write_text(load_page(figures, datetime.now(UTC).date()), encoding="utf-8")
    elif options.kind == "kills":
        figures = kills()
    else:
        figures = hosts(options.count)
    print(json.dumps(figures, indent=2))
    return 0


def _soak(options: argparse.Namespace) -> int:
    folder = options.resume or Path(tempfile.mkdtemp(prefix="soak-"))  # a short path, since it contains socket files
    print(f"the record is {folder / 'record.jsonl'}", flush=True)
    plan = Plan(**{name: getattr(options, name) for name in Plan._fields})
    return 1 if soak(plan, folder) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--rate", type=float, default=4.0, help="total requests per second, for all users")
    parser.add_argument("--restart-minutes", type=float, default=20.0, help="time between restarts of the daemon")
    parser.add_argument("--sample-s", type=float, default=15.0, help="time between samples of memory, files and disk")
    parser.add_argument("--light", action=argparse.BooleanOptionalAction, default=True, help="without Ray")
    parser.add_argument("--nice", type=int, default=10, help="niceness of the soak and its daemon")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="append to the record in FOLDER (may be new)")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="write ops/soak/REPORT.md from the records in these folders",
    )
    kinds = parser.add_subparsers(dest="kind")
    one = kinds.add_parser("burst", help="publish many events at once, with concurrent recalls")
    one.add_argument("--events", type=int, default=100_000)
    one.add_argument("--timeout", type=float, default=7_200.0, help="seconds within which all events must be processed")
    one.add_argument("--page", type=Path, nargs="?", const=_PAGE, help="write the results to ops/bench/load.md")
    kinds.add_parser("kills", help="kill each process in turn; nothing may be left behind")
    hosts_kind = kinds.add_parser("hosts", help="measure the memory that each stopped host leaves in Ray's processes")
    hosts_kind.add_argument("--count", type=int, default=100)
    return parser


if __name__ == "__main__":
    sys.exit(main())
