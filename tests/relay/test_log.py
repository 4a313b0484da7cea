"""Test that nothing is logged unless an entry point has configured logging."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections import Counter
from pathlib import Path

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


ROTATING = """
import faulthandler, os, sys, threading
from pathlib import Path
from relay import log as module
module._MOST_BYTES, module._FORMER = int(sys.argv[2]), int(sys.argv[3])
module.configure_logging("info", Path(sys.argv[1]))
def write(name):
    for number in range(500):
        module.log.info("line.written", name=name, number=number)
        os.write(2, f"native {name} {number}\\n".encode())
threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
faulthandler.dump_traceback()
"""


def rotated(file: Path, most_bytes: int, former: int) -> list[Path]:
    """Let a process with four threads write 4,000 lines to `file`; return the files, newest first."""
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
        subprocess.run(
            [sys.executable, "-c", ROTATING, str(file), str(most_bytes), str(former)], stderr=log, check=True
        )
    numbered = (file.with_name(f"{file.name}.{number}") for number in range(1, former + 1))
    return [one for one in (file, *numbered) if one.exists()]


def test_a_full_log_becomes_a_former_one_without_losing_a_line(tmp_path: Path) -> None:
    files = rotated(tmp_path / "daemon.log", 20_000, 100)
    assert len(files) > 10
    lines = [line for file in files for line in file.read_text().splitlines()]
    own = Counter((one["name"], one["number"]) for one in map(json.loads, (one for one in lines if one[0] == "{")))
    native = Counter(line for line in lines if line.startswith("native"))
    assert (len(own), len(native)) == (2_000, 2_000)
    assert {*own.values(), *native.values()} == {1}
    assert "most recent call first" in files[0].read_text(), "of faulthandler, which has the number of the descriptor"
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_size_and_number_of_logs_are_bounded(tmp_path: Path) -> None:
    files = rotated(tmp_path / "daemon.log", 20_000, 2)
    assert len(files) == 3
    assert all(file.stat().st_size < 22_000 for file in files)


def test_standard_error_that_is_another_file_is_not_rotated(tmp_path: Path) -> None:
    (tmp_path / "daemon.log").write_text("of a former daemon")
    script = ROTATING.replace("sys.argv[1]", f"{str(tmp_path / 'daemon.log')!r}")
    done = subprocess.run([sys.executable, "-c", script, "", "1000", "2"], capture_output=True, check=True)
    assert done.stderr.count(b"native") == 2_000
    assert (tmp_path / "daemon.log").read_text() == "of a former daemon"


def test_a_log_whose_folder_is_full_goes_on_in_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "daemon.log.new").mkdir()  # the next file cannot be created
    (file,) = rotated(tmp_path / "daemon.log", 20_000, 2)
    assert file.read_text().count("native") == 2_000
