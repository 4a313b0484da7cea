"""Settings files as users write them: TOML, and JSON with any layout, comments and trailing commas."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from memory_agent.integrations import Syntax

STRICT, COMMENTS, LOOSE = Syntax(), Syntax(comments=True), Syntax(comments=True, trailing_commas=True)
_NAMES = st.sampled_from(["mcpServers", "hooks", "SessionStart", "theme", "naïve", 'a "quoted" key', "enabled//"])
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(['"// no comment"', "1e400", "-0.0", "12345678901234567890123"]).map(lambda text: ("raw", text)),
    st.text(alphabet='ab"\\/{[,\n\x01é😀', max_size=8),
)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=8
)
_GAPS = ["", "", " ", "\n", "\n  ", "\n\t", "  "]
_GAPS_WITH_COMMENTS = [*_GAPS, " // why\n", "/* all\nof it */", "\n  // {\n  ", " /* , */ "]


@st.composite
def json_texts(draw: st.DrawFn, syntax: Syntax) -> str:
    """A document whose root is an object, in any valid layout."""
    gaps = st.sampled_from(_GAPS_WITH_COMMENTS if syntax.comments else _GAPS)

    def written(value: Any) -> str:
        if isinstance(value, tuple):
            return str(value[1])
        if isinstance(value, dict):
            return listed(
                "{}", [f"{json.dumps(key)}{draw(gaps)}:{draw(gaps)}{written(own)}" for key, own in value.items()]
            )
        if isinstance(value, list):
            return listed("[]", [written(own) for own in value])
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    def listed(brackets: str, parts: list[str]) -> str:
        trailing = "," if parts and syntax.trailing_commas and draw(st.booleans()) else ""
        inside = ",".join(f"{draw(gaps)}{part}{draw(gaps)}" for part in parts) or draw(gaps)
        return f"{brackets[0]}{inside}{trailing}{draw(gaps)}{brackets[1]}"

    root = draw(st.dictionaries(_NAMES, _VALUES, max_size=4))
    text = f"{draw(gaps)}{written(root)}{draw(gaps)}"
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


TOML_TEXTS = (
    "",
    'model = "gpt-5.5"',
    "# only a comment\n",
    'model = "x"\n\n\n',
    '[mcp_servers.github]\ncommand = "npx"  # theirs\nargs = ["-y"]\n\n'
    '# about projects\n[projects."/srv"]\ntrust_level = "trusted"\n',
    "[mcp_servers]\n",
    "[features]\r\nweb = true\r\n",
    'note = """\n[mcp_servers.memory-agent]\ncommand = "no table"\n"""\nweight = nan\n',
)
