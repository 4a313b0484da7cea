"""Test that the pages with promises name an existing test for each promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("SECURITY.md", "DURABILITY.md")
_NAMED = re.compile(r"`(tests/[\w/.-]+?)(?:::(\w+))?`")


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / "ops" / page).exists()])
def test_each_test_that_a_page_names_exists(page: str) -> None:
    named = _NAMED.findall((ROOT / "ops" / page).read_text(encoding="utf-8"))
    assert named
    for path, name in named:
        assert (ROOT / path).exists(), f"{page} names {path}"
        if name:
            assert re.search(rf"def {name}\b|class {name}\b", (ROOT / path).read_text(encoding="utf-8")), (page, name)
