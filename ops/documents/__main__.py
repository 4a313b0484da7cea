"""`python -m ops.documents` generates the pages, clients, catalogue, plugin and service unit from the code and
`meanings.toml`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import msgspec

from memory_agent.doors.mcp.introduction import CATALOGUE
from memory_agent.doors.mcp.tools import describe_catalogue
from memory_agent.integrations import plugin_files, system_unit
from ops.documents import clients
from ops.documents.errors_page import errors_page
from ops.documents.settings_page import settings_page

OPS = Path(__file__).parents[1]


def make_pages() -> dict[Path, str]:
    """Return the text of each generated file, by path."""
    meanings = tomllib.loads(Path(__file__).with_name("meanings.toml").read_text(encoding="utf-8"))
    return {
        OPS / "SETTINGS.md": settings_page(meanings["settings"], meanings["variables"]),
        OPS / "ERRORS.md": errors_page(meanings),
        OPS / "deploy" / "memory-agent.service": system_unit(),
        CATALOGUE: msgspec.json.format(msgspec.json.encode(describe_catalogue()), indent=1).decode() + "\n",
        clients.FILE: clients.source(),
        **plugin_files(),
    }


def main() -> int:
    """Write all generated files."""
    for file, text in make_pages().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
