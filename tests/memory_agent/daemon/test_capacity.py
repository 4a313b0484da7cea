"""Test how the number of cores and the amount of memory determine a daemon's capacity."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.daemon.capacity import Capacity, capacity_of, usable_memory_bytes
from memory_agent.embedders.lanes import usable_cores
from memory_agent.settings import DaemonSettings, load_settings

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "memory_gib", "dedicated", "shared", "spare", "requests"),
    [
        (1, 8, 8, 1, 1, 512),
        (2, 24, 8, 2, 1, 512),
        (4, 16, 8, 2, 1, 512),
        (16, 128, 16, 14, 2, 512),
        (64, 256, 64, 32, 8, 2_048),
        (2, 2, 3, 2, 1, 512),
        (64, 16, 10, 32, 8, 2_048),
    ],
)
def test_defaults_follow_the_machine(
    cores: int, memory_gib: int, dedicated: int, shared: int, spare: int, requests: int
) -> None:
    chosen = capacity_of(DaemonSettings(), cores, memory_gib * GIB)
    assert chosen == Capacity(dedicated, shared, spare, requests, answer_threads=8, ingest_threads=4)


@given(st.integers(1, 256), st.integers(1 << 28, 1 << 40))
def test_hosts_fit_in_memory_and_are_never_more_than_useful(cores: int, memory_bytes: int) -> None:
    chosen = capacity_of(DaemonSettings(), cores, memory_bytes)
    assert 1 <= chosen.shared_hosts <= cores
    hosts = chosen.dedicated_hosts + chosen.shared_hosts
    assert hosts <= 2 or hosts * 100_000_000 <= memory_bytes / 4
    more = capacity_of(DaemonSettings(), cores + 1, memory_bytes)
    assert more.shared_hosts >= chosen.shared_hosts


@given(st.integers(1, 256), st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_settings_override_the_defaults(cores: int, dedicated: int, shared: int, spare: int, requests: int) -> None:
    settings = DaemonSettings(
        dedicated_hosts=dedicated, shared_hosts=shared, spare_hosts=spare, requests_in_flight=requests
    )
    chosen = capacity_of(settings, cores, 8 * GIB)
    assert chosen == Capacity(dedicated, shared, spare, requests, answer_threads=8, ingest_threads=4)


def test_a_setting_is_a_number_or_auto() -> None:
    overrides = {"daemon.shared_hosts": "auto", "daemon.dedicated_hosts": "0", "daemon.spare_hosts": 3}
    settings = load_settings(environment={}, overrides=overrides).daemon
    assert (settings.shared_hosts, settings.dedicated_hosts, settings.spare_hosts) == ("auto", 0, 3)


def test_the_least_limit_of_the_control_groups_is_the_memory(tmp_path: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / "a" / "b").mkdir(parents=True)
    assert usable_memory_bytes(own, groups) == psutil.virtual_memory().total, "no control groups"
    own.write_text("1:cpu:/x\n0::/a/b\n")
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    assert usable_memory_bytes(own, groups) == psutil.virtual_memory().total
    (groups / "a" / "memory.max").write_text("1048576\n")
    assert usable_memory_bytes(own, groups) == 1 << 20
    own.write_text("0::/\n")
    assert usable_memory_bytes(own, groups) == psutil.virtual_memory().total
    (groups / "memory.max").write_text("4096\n")
    assert usable_memory_bytes(own, groups) == 4096


def test_the_least_quota_of_the_control_groups_limits_the_cores(tmp_path: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / "a" / "b").mkdir(parents=True)
    cores = usable_cores(own, groups)
    assert cores >= 1, "no control groups"
    own.write_text("0::/a/b\n")
    (groups / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert usable_cores(own, groups) == cores
    (groups / "a" / "cpu.max").write_text("6400000 100000\n")
    assert usable_cores(own, groups) == min(cores, 64)
    (groups / "cpu.max").write_text("20000 100000\n")
    assert usable_cores(own, groups) == 1
