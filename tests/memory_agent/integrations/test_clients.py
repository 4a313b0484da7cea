"""Test our settings entries for clients that `tests/end_to_end` cannot run, against the documented types."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from memory_agent.integrations import CLIENTS, Command

TEXT = {"type": "string"}
ZED_SERVER = {
    "type": "object",
    "required": ["command"],
    "additionalProperties": False,
    "properties": {
        "enabled": {"type": "boolean"},
        "remote": {"type": "boolean"},
        "command": TEXT,
        "args": {"type": "array", "items": TEXT},
        "env": {"type": "object", "additionalProperties": TEXT},
        "timeout": {"type": "integer"},
    },
}
"""`ContextServerSettingsContent::Stdio` in Zed's crates/settings_content/src/project.rs (commit 006ce515). Zed accepts
other keys, but marks them as unknown. It offers to remove `source`, which was required until November 2025.
"""


@pytest.mark.parametrize("project", [None, Path("/home/ann/shop")])
def test_the_entry_for_zed_has_the_type_of_its_settings(project: Path | None) -> None:
    for file in (*CLIENTS["zed"].user, *CLIENTS["zed"].project):
        for entry in file.entries:
            for wanted in entry.wanted(Command("/opt/memory-agent", ("--user", "ann"), project=project)):
                assert (wanted.place, wanted.key) == (("context_servers",), "memory-agent")
                jsonschema.Draft7Validator(ZED_SERVER).validate(wanted.value)
