"""`python -m ops.documents`: write the pages made from the code and `meanings.toml`, and the clients' methods."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from ops.documents.clients import client_pages
from ops.documents.errors_page import errors_page
from ops.documents.settings_page import settings_page

OPS = Path(__file__).parents[1]


def make_pages() -> dict[Path, str]:
    """Return each page's text by its file."""
    meanings = tomllib.loads(Path(__file__).with_name("meanings.toml").read_text(encoding="utf-8"))
    return {
        OPS / "SETTINGS.md": settings_page(meanings["settings"], meanings["variables"]),
        OPS / "ERRORS.md": errors_page(meanings),
        **client_pages(),
    }


def main() -> int:
    """Write the pages."""
    for file, text in make_pages().items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
