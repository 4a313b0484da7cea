"""The client table: the settings files that each client reads, and our entries in them.

Tested with Claude Code 2.1.330, Codex 0.169.0, Gemini CLI 0.61.0, VS Code 1.139.1 and the agent of Cursor (SDK 1.0.32),
including the syntax that each client rejects. The entry for Zed follows Zed's settings types of 2026.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from memory_agent.errors import UnavailableError
from memory_agent.hooks.inputs import LISTENED
from memory_agent.hooks.report import SHORT_PATH
from memory_agent.integrations.json_text import JsonText, KeyPath, Syntax
from memory_agent.integrations.toml_text import TomlText
from memory_agent.sessions.events import channel_of

PROGRAM = "memory-agent"
"""The name of our command, and of our MCP server in every client."""
_PERL, _LAUNCHER_WORDS = "/usr/bin/perl", 4
_TIMEOUT_S = 3  # hooks finish much earlier; at the end of a session, Codex does not allow a longer timeout

Text = JsonText | TomlText


class Command(NamedTuple):
    """The command that a client runs to start this program: the program's path, the options of `mcp` and `hook CLIENT`,
    and the `project` (None: all projects).

    `launcher` contains the words before the program in a hook's command.
    """

    program: str
    server_options: tuple[str, ...] = ()
    hook_options: tuple[str, ...] = ()
    project: Path | None = None
    launcher: tuple[str, ...] = ()

    def server(self, *, starts_in_project: bool) -> list[str]:
        """Return the MCP server's arguments. If there is a project, the memories belong to its channel."""
        channel = ["--channel", channel_of(str(self.project))] if self.project is not None else []
        return ["mcp", *(["--project"] if starts_in_project else channel), *self.server_options]

    def hook(self, client: str) -> str:
        """Return the shell command that answers a hook."""
        return shlex.join([*self.launcher, self.program, "hook", client, *self.hook_options])


def this_program() -> str:
    """Return the absolute path of this program. Links are not resolved, because an upgrade may move the target.

    Raises `UnavailableError` if the program is not installed.
    """
    for path in (Path(sys.argv[0]), Path(sys.executable).with_name(PROGRAM)):
        if path.name == PROGRAM and path.is_file():
            return str(path.absolute())
    raise UnavailableError(f"program {PROGRAM} not found beside {sys.executable}; install the package")


def hook_launcher() -> tuple[str, ...]:
    """Return the first words of a hook's command, which run its short path (`hook.pl`), or none if Perl is missing.

    If the script is missing, the command that follows these words answers the hook.
    """
    is_usable = sys.platform == "linux" and os.access(_PERL, os.X_OK)
    return (_PERL, "-e", "do shift; exec @ARGV", str(SHORT_PATH)) if is_usable else ()


class Found(NamedTuple):
    place: KeyPath
    words: tuple[str, ...]


class Wanted(NamedTuple):
    """An entry that a file should contain: member `key` of the object at `place` or, without a key, an element of the
    list there."""

    place: KeyPath
    key: str | None
    value: Any
    words: tuple[str, ...]


class Server(NamedTuple):
    """The MCP server's entry in the object or table `container`: the command, and the fields before and after it."""

    container: str
    before: Mapping[str, Any] = {}
    after: Mapping[str, Any] = {}
    starts_in_project: bool = False

    def wanted(self, command: Command) -> Iterator[Wanted]:
        words = command.server(starts_in_project=self.starts_in_project)
        value = {**self.before, "command": command.program, "args": words, **self.after}
        yield Wanted((self.container,), PROGRAM, value, (command.program, *words))

    def found(self, text: Text) -> Iterator[Found]:
        """Yield our entry, even if another version wrote it."""
        place = (self.container, PROGRAM)
        entry = text.find(place)
        if isinstance(entry, Mapping) and isinstance(entry.get("command"), str):
            said = entry.get("args")
            words = (entry["command"], *(map(str, said) if isinstance(said, list) else ()))
            if _runs(words, "mcp"):
                yield Found(place, words)


class Hooks(NamedTuple):
    """The entries of all hooks that `memory-agent hook CLIENT` handles. `per_second`: timeout units per second.

    The client waits for each hook. Claude Code would kill a hook that runs in the background (`async`) when the session
    ends.
    """

    client: str
    per_second: int = 1

    def wanted(self, command: Command) -> Iterator[Wanted]:
        line = command.hook(self.client)
        for event in LISTENED[self.client]:
            hook = {"type": "command", "command": line, "timeout": _TIMEOUT_S * self.per_second}
            yield Wanted(("hooks", event), None, {"hooks": [hook]}, tuple(shlex.split(line)))

    def found(self, text: Text) -> Iterator[Found]:
        events = text.find(("hooks",))
        for event, groups in events.items() if isinstance(events, Mapping) else ():
            for place, group in enumerate(groups if isinstance(groups, list) else ()):
                yield from self._in_group(("hooks", event, place), group)

    def _in_group(self, place: KeyPath, group: Any) -> Iterator[Found]:
        """Yield the whole group if our hook is its only entry; otherwise yield each of our hooks in it."""
        hooks = group.get("hooks") if isinstance(group, Mapping) else None
        lines = [_words(hook) for hook in hooks] if isinstance(hooks, list) else []
        ours = [at for at, words in enumerate(lines) if _runs(words, "hook", self.client)]
        if len(ours) == 1 == len(lines):
            yield Found(place, lines[0])
        else:
            yield from (Found((*place, "hooks", at), lines[at]) for at in ours)


class Approval(NamedTuple):
    """Our server's name in the list of servers that a client starts without asking the user."""

    container: str

    def wanted(self, command: Command) -> Iterator[Wanted]:
        yield Wanted((self.container,), None, PROGRAM, (PROGRAM,))

    def found(self, text: Text) -> Iterator[Found]:
        names = text.find((self.container,))
        for place, name in enumerate(names if isinstance(names, list) else ()):
            if name == PROGRAM:
                yield Found((self.container, place), (PROGRAM,))


Entry = Server | Hooks | Approval


def _words(hook: Any) -> tuple[str, ...]:
    line = hook.get("command") if isinstance(hook, Mapping) else None
    try:
        return tuple(shlex.split(line)) if isinstance(line, str) else ()
    except ValueError:  # an unclosed quote, in a user's hook for a different shell
        return ()


def _runs(words: tuple[str, ...], *verb: str) -> bool:
    if words[:1] == (_PERL,):
        words = words[_LAUNCHER_WORDS:]
    return bool(words) and PurePath(words[0]).name == PROGRAM and words[1 : 1 + len(verb)] == verb


class Home(NamedTuple):
    """A client's settings folder: the path `below`, relative to the folder that the environment variable `variable`
    names or, if it is unset, to `folder`.
    """

    folder: str
    variable: str = ""
    below: str = ""

    def path(self, home: Path, variables: Mapping[str, str]) -> Path:
        named = variables.get(self.variable, "") if self.variable else ""
        return (Path(named) if named else home / self.folder) / self.below


class File(NamedTuple):
    """A settings file: its path below `home` or the project, and our entries. Without `syntax`, it is TOML."""

    path: str
    entries: tuple[Entry, ...]
    syntax: Syntax | None = Syntax()
    home: Home | None = None

    def read(self, text: str) -> Text:
        return TomlText(text) if self.syntax is None else JsonText(text, self.syntax)


class Client(NamedTuple):
    """A client. `advice` tells the user what to do next; `project_advice` is added for a project."""

    title: str
    home: Home
    user: tuple[File, ...]
    project: tuple[File, ...]
    advice: tuple[str, ...] = ()
    project_advice: tuple[str, ...] = ()


_COMMENTS = Syntax(comments=True)
_LOOSE = Syntax(comments=True, trailing_commas=True)
_CONFIG_HOME = "XDG_CONFIG_HOME"
_VS_CODE = (
    Home("Library/Application Support", below="Code/User")
    if sys.platform == "darwin"
    else Home(".config", _CONFIG_HOME, "Code/User")
)


_CLAUDE_HOOKS = Hooks("claude-code")
_CODEX_HOOKS = Hooks("codex")
_GEMINI_HOOKS = Hooks("gemini", per_second=1_000)
_CLAUDE_SERVER = Server(  # without alwaysLoad the client hides the tools behind a search
    "mcpServers", {"type": "stdio"}, {"alwaysLoad": True}, starts_in_project=True
)
_CODEX_FILES = (
    File("config.toml", (Server("mcp_servers", starts_in_project=True),), syntax=None),
    File("hooks.json", (_CODEX_HOOKS,)),
)
_GEMINI_ENTRIES = (Server("mcpServers", starts_in_project=True), _GEMINI_HOOKS)
_CURSOR_ENTRIES = (Server("mcpServers"),)
_VS_CODE_ENTRIES = (Server("servers", {"type": "stdio"}),)
_ZED_ENTRIES = (Server("context_servers"),)

CLIENTS: Mapping[str, Client] = {
    "claude-code": Client(
        "Claude Code",
        Home(".claude", "CLAUDE_CONFIG_DIR"),
        (
            File(".claude.json", (_CLAUDE_SERVER,), home=Home("", "CLAUDE_CONFIG_DIR")),
            File("settings.json", (_CLAUDE_HOOKS,)),
        ),
        (
            File(".mcp.json", (_CLAUDE_SERVER,)),
            File(".claude/settings.local.json", (Approval("enabledMcpjsonServers"), _CLAUDE_HOOKS)),
        ),
        project_advice=("keep .mcp.json out of version control, because it contains this machine's paths",),
    ),
    "codex": Client(
        "Codex",
        Home(".codex", "CODEX_HOME"),
        _CODEX_FILES,
        tuple(file._replace(path=f".codex/{file.path}") for file in _CODEX_FILES),
        advice=("Codex runs new hooks only after you approve them: run /hooks in Codex once",),
        project_advice=("Codex reads a project's settings only if it trusts the project",),
    ),
    "gemini": Client(
        "Gemini CLI",
        Home("", "GEMINI_CLI_HOME", ".gemini"),
        (File("settings.json", _GEMINI_ENTRIES, _COMMENTS),),
        (File(".gemini/settings.json", _GEMINI_ENTRIES, _COMMENTS),),
        project_advice=("Gemini CLI reads a project's settings only if it trusts the folder",),
    ),
    "cursor": Client(
        "Cursor",
        Home(".cursor"),
        (File("mcp.json", _CURSOR_ENTRIES, _LOOSE),),
        (File(".cursor/mcp.json", _CURSOR_ENTRIES, _LOOSE),),
    ),
    "vscode": Client(
        "VS Code",
        _VS_CODE,
        (File("mcp.json", _VS_CODE_ENTRIES, _LOOSE),),
        (File(".vscode/mcp.json", _VS_CODE_ENTRIES, _LOOSE),),
        project_advice=("VS Code starts a project's server only if it trusts the folder",),
    ),
    "zed": Client(
        "Zed",
        Home(".config", _CONFIG_HOME, "zed"),
        (File("settings.json", _ZED_ENTRIES, _LOOSE),),
        (File(".zed/settings.json", _ZED_ENTRIES, _LOOSE),),
    ),
}


class Scope(NamedTuple):
    """The sessions of a client to connect: all sessions of the user, or only the sessions in the folder `project`."""

    client: str
    project: Path | None
    home: Path
    variables: Mapping[str, str] = os.environ

    def files(self) -> Iterator[tuple[Path, File]]:
        client = CLIENTS[self.client]
        if self.project is not None:
            yield from ((self.project / file.path, file) for file in client.project)
            return
        for file in client.user:
            yield (file.home or client.home).path(self.home, self.variables) / file.path, file

    @property
    def advice(self) -> tuple[str, ...]:
        """What the user should do next."""
        client = CLIENTS[self.client]
        return client.advice + (client.project_advice if self.project is not None else ())
