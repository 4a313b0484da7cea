"""Test that the program prints the tables of ops/CLUSTER.md, and that its formulas are consistent."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_agent.daemon.directory import rendezvous
from ops.bench.capacity import CONSTANTS, Assumptions, main, plan

PAGE = (Path(__file__).parents[2] / "ops" / "CLUSTER.md").read_text(encoding="utf-8")
TABLES = re.findall(r"<!-- (capacity|constants)(.*?) -->\n\n(.*?)\n\n<!-- end -->", PAGE, re.DOTALL)


def test_the_page_has_its_tables() -> None:
    assert [kind for kind, _, _ in TABLES] == ["capacity", "capacity", "constants"]


@pytest.mark.parametrize(("kind", "options", "shown"), TABLES)
def test_a_table_of_the_page_is_what_the_program_prints(
    kind: str, options: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(options.split())
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert shown == tables[kind == "constants"]


def test_the_example_of_the_page_prints_what_it_says() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (said,) = re.findall(r"# (cell-\d)", example)
    assert rendezvous("alice", ("cell-0", "cell-1", "cell-2")) == said


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_more_users_never_need_less(one: int, other: int) -> None:
    few, many = (plan(users, Assumptions()) for users in sorted((one, other)))
    assert few.cells <= many.cells
    assert few.recalls_per_s <= many.recalls_per_s
    assert few.disk_gb <= many.disk_gb


def test_what_bounds_a_daemon_follows_from_what_its_users_do() -> None:
    million = 1_000_000
    assert plan(million, Assumptions()).bound == "users awake"
    busy = replace(Assumptions(), most_awake=million, recalls=2_000.0)
    assert plan(million, busy).bound == "dispatcher"
    assert plan(million, busy).machines_bound == "cores"
    assert plan(100, Assumptions()).cells == plan(100, Assumptions()).machines == 1


def test_a_cell_holds_as_many_awake_users_as_were_tried() -> None:
    assert Assumptions().most_awake == CONSTANTS["tried_awake"].value
