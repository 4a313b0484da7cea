"""Test full and failing disks: intake stops with an error, and acknowledged events are preserved."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from relays import NOW, RelayProcess, entries, event, later, mapping, wait_until

from relay import (
    Journal,
    JournalFullError,
    JournalSettings,
    Publisher,
    PublisherSettings,
    RelaySettings,
    Subscriber,
    journal_folder,
)

IMPATIENT = PublisherSettings(window=64, ack_timeout_s=0.2, full_pause_s=0.05)
SHIM = Path(__file__).parents[1] / "crash" / "faults.c"
JOURNAL_FAILS = "eio any /journal/ 1 0 1\n"


def skip_unless_ci(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 4 MB."""
    with tempfile.TemporaryDirectory(prefix="relay-disk-") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            skip_unless_ci(f"only root can mount a file system: {mounted.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill the file system completely."""
    file = folder / "ballast"
    with file.open("wb", buffering=0) as ballast:
        size = 1 << 16
        while size:
            try:
                ballast.write(bytes(size))
            except OSError:
                size //= 2
    return file


def test_a_full_disk_stops_intake_and_not_reading_and_nothing_is_lost(small_disk: Path) -> None:
    data_dir = small_disk / "data"
    settings = RelaySettings(journal=JournalSettings(map_size_bytes=1 << 30, disk_reserve_bytes=0))
    with (
        RelayProcess(data_dir, settings) as relay,
        Publisher(relay.endpoints.ingest, settings=IMPATIENT) as publisher,
        Subscriber(*relay.endpoints) as subscriber,
    ):
        for number in range(20):
            publisher.publish(mapping(number, payload={"text": "x" * 10_000}))
        publisher.flush()
        ballast = fill(small_disk)
        for number in range(20, 60):
            publisher.publish(mapping(number, payload={"text": "x" * 10_000}))
        wait_until(lambda: subscriber.stats().counts.get("refused_full", 0) > 0)
        assert len(entries(subscriber)) >= 20
        assert publisher.flush(0.1).pending > 0
        ballast.unlink()
        assert publisher.flush().acked == 60
        assert entries(subscriber) == [(number + 1, f"event-{number:06d}") for number in range(60)]
        assert relay.stop() == 0
        assert "Traceback" not in relay.log()


def test_on_a_full_disk_the_reserve_lets_retention_delete(small_disk: Path) -> None:
    settings = JournalSettings(
        map_size_bytes=1 << 30, disk_reserve_bytes=1 << 20, retention_age_s=60, repeat_horizon_s=0
    )
    with Journal.open(small_disk / "journal", settings) as journal:
        for number in range(100):
            journal.append([event(number, payload={"text": "x" * 8_000})], NOW)
        fill(small_disk)
        with pytest.raises(JournalFullError):
            journal.append([event(number, payload={"text": "x" * 100_000}) for number in range(100, 120)], NOW)
        assert journal.last_seq == len(journal.read(0, 1_000, 1 << 30)) == 100
        assert journal.retain(later(3_600)).deleted == 100
        assert journal.append([event(200)], later(3_600))[0].seq == 101


def give_order(switch: Path) -> None:
    """Make every later write to the journal fail. The file `switch` is created atomically."""
    whole = switch.with_suffix(".new")
    whole.write_text(JOURNAL_FAILS)
    whole.replace(switch)


@pytest.fixture
def failing_disk(tmp_path: Path) -> Path:
    """A library, compiled for the test, that makes disk calls fail."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        skip_unless_ci("the failing disk requires Linux and a C compiler")
    library = tmp_path / "failing_disk.so"
    subprocess.run([str(compiler), "-shared", "-fPIC", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def test_after_a_disk_error_nothing_is_acknowledged_and_the_relay_ends(
    data_dir: Path, tmp_path: Path, failing_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / "fail"
    monkeypatch.setenv("LD_PRELOAD", str(failing_disk))
    monkeypatch.setenv("FAULT_ORDER", str(switch))
    relay = RelayProcess(data_dir).start()
    monkeypatch.delenv("LD_PRELOAD")
    with Publisher(relay.endpoints.ingest, settings=IMPATIENT) as publisher:
        for number in range(10):
            publisher.publish(mapping(number))
        assert publisher.flush().acked == 10
        give_order(switch)
        for number in range(10, 20):
            publisher.publish(mapping(number))
        assert relay.wait() == 1
        assert "[journal]" in relay.log()
        assert publisher.flush(0.1).acked == 10
        switch.unlink()
        with Journal.open(journal_folder(data_dir), readonly=True) as journal:
            assert journal.last_seq == 10
        with relay, Subscriber(*relay.endpoints) as subscriber:
            report = publisher.flush()
            assert report.acked + report.duplicates == 20
            assert entries(subscriber) == [(number + 1, f"event-{number:06d}") for number in range(20)]
