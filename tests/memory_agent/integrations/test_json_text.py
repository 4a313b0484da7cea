"""Edits to JSON and TOML text can be undone, and change no other byte of the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from settings_texts import COMMENTS, LOOSE, STRICT, TOML_TEXTS, json_texts

from memory_agent.integrations import JsonText, Syntax, TomlText, UneditableError

SERVER = {"command": "/opt/memory agent", "args": ["mcp"]}


@pytest.mark.parametrize("syntax", [STRICT, COMMENTS, LOOSE])
@given(data=st.data())
def test_an_addition_can_be_found_and_its_removal_restores_every_byte(syntax: Syntax, data: st.DataObject) -> None:
    text = data.draw(json_texts(syntax))
    document = JsonText(text, syntax)
    added = document.added((), "memory-agent", SERVER)
    assert added.find(("memory-agent",)) == SERVER
    assert {**document.value, "memory-agent": SERVER} == added.value
    removed = added.removed(("memory-agent",))
    if document.value:
        assert removed.text == text
    else:  # an empty object may remain on two lines
        assert removed.with_inside((), document.inside(())).text == text


@given(text=json_texts(STRICT))
def test_the_parser_agrees_with_the_standard_library(text: str) -> None:
    assert plain(JsonText(text).value) == json.loads(text)


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return json.loads(value[0])
    if isinstance(value, dict):
        return {key: plain(own) for key, own in value.items()}
    return [plain(own) for own in value] if isinstance(value, list) else value


@given(text=st.text(alphabet='{}[]",:\\/*\n tru1e-. \x00é', max_size=30))
def test_any_text_is_parsed_like_the_standard_library_or_refused(text: str) -> None:
    def rejected(name: str) -> None:
        raise ValueError(name)

    try:
        expected = json.loads(text, parse_constant=rejected)
    except ValueError:
        with pytest.raises(UneditableError):
            JsonText(text)
    else:
        assert plain(JsonText(text).value) == expected


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{,}", "line 1, column 2"),
        ('{"a": 1', "unexpected end"),
        ('{"a": 1,}', "'}' after a comma"),
        ("{\n  // why\n}", "line 2, column 3: this client does not support comments"),
        ('{"a": 1} x', "not JSON"),
        ('{"a": 1} 2', "unexpected text after the end"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a" 1}', "expected ':'"),
        ('{"a": "\n"}', "line 1, column 7"),
    ],
)
def test_a_refusal_contains_position_and_reason(text: str, where: str) -> None:
    with pytest.raises(UneditableError, match=where.replace("(", r"\(")):
        JsonText(text)


COMPACT = '{"a":1}', '{"a":1,"m":{"command":"x","args":["mcp"]}}'
ONE_LINE = '{"a": 1}', '{"a": 1, "m": {"command": "x", "args": ["mcp"]}}'
TABS = (
    '{\n\t"a": 1 // one\n}\n',
    '{\n\t"a": 1, // one\n\t"m": {\n\t\t"command": "x",\n\t\t"args": [\n\t\t\t"mcp"\n\t\t]\n\t}\n}\n',
)
TRAILING = '{\n    "a": [1],\n}', '{\n    "a": [1],\n    "m": {\n        "command": "x"\n    },\n}'


@pytest.mark.parametrize(("text", "expected"), [COMPACT, ONE_LINE, TABS, TRAILING])
def test_an_addition_takes_the_layout_around_it(text: str, expected: str) -> None:
    value = {"command": "x"} | ({"args": ["mcp"]} if "args" in expected else {})
    assert JsonText(text, LOOSE).added((), "m", value).text == expected


def test_a_removal_leaves_no_text_inside_a_comment() -> None:
    text = '{"a": 1, // one\n "m": {}, "b": 2}'
    assert JsonText(text, LOOSE).removed(("m",)).value.keys() == {"a", "b"}
    last = '{"a": 1, // one\n "m": {} }'
    assert JsonText(last, LOOSE).removed(("m",)).value.keys() == {"a"}


def test_a_container_of_another_kind_is_refused() -> None:
    with pytest.raises(UneditableError, match="mcpServers is not an object"):
        JsonText('{"mcpServers": []}').added(("mcpServers",), "m", {})
    with pytest.raises(UneditableError, match=r"hooks\.Stop is not a list"):
        JsonText('{"hooks": {"Stop": {}}}').added(("hooks", "Stop"), None, {})


@pytest.mark.parametrize("text", TOML_TEXTS)
def test_a_table_is_added_last_and_its_removal_restores_every_byte(text: str) -> None:
    added = TomlText(text).added(("mcp_servers",), "memory-agent", SERVER)
    assert added.text.startswith(text)
    assert added.find(("mcp_servers", "memory-agent")) == SERVER
    end = "" if not text or text.endswith("\n") else "\n"
    assert added.removed(("mcp_servers", "memory-agent")).text == text + end


def test_subtables_are_removed_with_a_table_and_comments_stay() -> None:
    text = TomlText("a = 1\n").added(("mcp_servers",), "memory-agent", SERVER).text
    later = '\n# about projects\n[projects."/srv"]\ntrust = "yes"\n'
    own = '[mcp_servers.memory-agent.tools.recall]\napproval_mode = "approve"\n'
    assert TomlText(text + own + later).removed(("mcp_servers", "memory-agent")).text == "a = 1\n" + later
    assert TomlText(text + later + own).removed(("mcp_servers", "memory-agent")).text == "a = 1\n" + later


@pytest.mark.parametrize("text", ['mcp_servers = {a = {command = "x"}}\n', 'mcp_servers = "none"\n'])
def test_a_table_that_cannot_be_added_is_refused(text: str) -> None:
    with pytest.raises(UneditableError, match="mcp_servers is defined in a different way"):
        TomlText(text).added(("mcp_servers",), "memory-agent", SERVER)


@pytest.mark.parametrize(
    "text", ['mcp_servers.memory-agent.command = "x"\n', "[mcp_servers]\nmemory-agent = {a = 1}\n"]
)
def test_an_entry_that_is_not_a_separate_table_is_refused(text: str) -> None:
    with pytest.raises(UneditableError, match="not a separate table"):
        TomlText(text).removed(("mcp_servers", "memory-agent"))


@pytest.mark.parametrize("text", ["a = ", "a = " + "[" * 10_000, "[a]\n[a]\n"])
def test_invalid_toml_is_refused(text: str) -> None:
    with pytest.raises(UneditableError):
        TomlText(text)
