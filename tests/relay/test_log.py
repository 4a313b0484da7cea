"""Test that nothing is logged unless an entry point configured the log."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest


def run(script: str, stderr: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)


def test_without_configuration_nothing_is_logged_and_no_logger_is_imported() -> None:
    ran = run(
        "import sys; from relay.log import log; log.error('relay.failed', path='x'); log.log(30, 'relay.late')\n"
        "try: raise ValueError\nexcept ValueError: log.exception('relay.failed')\n"
        "print('structlog' in sys.modules)"
    )
    assert (ran.stdout, ran.stderr) == ("False\n", "")


def test_a_process_that_uses_structlog_itself_gets_no_line_from_this_library() -> None:
    ran = run("import structlog; from relay.log import log; log.error('relay.failed')")
    assert (ran.stdout, ran.stderr) == ("", "")


def test_an_entry_point_gets_one_document_a_line_of_its_level_and_above() -> None:
    ran = run(
        "from relay.log import configure_logging, log; configure_logging('warning')\n"
        "log.info('relay.waiting'); log.warning('relay.late', owner='x', ms=3)\n"
        "import sys; print('rich' in sys.modules); import rich.console"
    )
    (line,) = map(json.loads, ran.stderr.splitlines())
    assert ran.stdout == "False\n"
    assert {"event": "relay.late", "level": "warning", "owner": "x", "ms": 3}.items() <= line.items()


def test_a_log_that_cannot_be_written_ends_no_process() -> None:
    with open("/dev/full", "w") as full:
        ran = run(
            "from relay.log import configure_logging, log; configure_logging(); log.info('relay.waiting'); print('on')",
            full.fileno(),
        )
    assert ran.stdout == "on\n"


@pytest.mark.parametrize(("level", "shown"), [("info", ["relay.late"]), ("debug", ["relay.waiting", "relay.late"])])
def test_on_a_terminal_info_shows_only_warnings(level: str, shown: list[str]) -> None:
    reader, writer = pty.openpty()
    run(
        f"from relay.log import configure_logging, log; configure_logging({level!r})\n"
        "log.info('relay.waiting'); log.warning('relay.late')",
        writer,
    )
    os.close(writer)
    written = os.read(reader, 10_000).decode()
    os.close(reader)
    assert [name for name in ("relay.waiting", "relay.late") if name in written] == shown
    assert len(written.splitlines()) == len(shown)
