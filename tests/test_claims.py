"""Test that the tests named in the pages on promises, and the modules in the ledger and the architecture, exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("SECURITY.md", "DURABILITY.md", "CLUSTER.md")
_NAMED = re.compile(r"`(tests/[\w/.-]+?)(?:::(\w+))?`")


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / "ops" / page).exists()])
def test_each_test_that_a_page_names_exists(page: str) -> None:
    named = _NAMED.findall((ROOT / "ops" / page).read_text(encoding="utf-8"))
    assert named
    for path, name in named:
        assert (ROOT / path).exists(), f"{page} names {path}"
        if name:
            assert re.search(rf"def {name}\b|class {name}\b", (ROOT / path).read_text(encoding="utf-8")), (page, name)


@pytest.mark.parametrize("page", ["LEDGER.md", "ARCHITECTURE.md"])
def test_each_module_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "ops" / page).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if "**removed**" not in line]  # a removed mechanism has no module
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", "\n".join(rows)))
    places = (ROOT, ROOT / "memory_agent", ROOT / "memory_agent" / "doors")
    assert named
    assert {
        name
        for name in named
        if not any((place / name).exists() or (place / f"{name}.py").exists() for place in places)
    } == set()
