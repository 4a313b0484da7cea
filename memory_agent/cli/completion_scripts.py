"""Writes the completion scripts of bash, zsh and fish from a description of all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from memory_agent.integrations import MARK

What = Literal["choices", "files", "folders", "settings", "text", "users"]


class Values(NamedTuple):
    """The values of an option or argument: one of `choices`, or any value of the kind `what`."""

    choices: tuple[str, ...] = ()
    what: What = "choices"


class Option(NamedTuple):
    """The names of an option, its help in one sentence, and its values (None for a switch)."""

    names: tuple[str, ...]
    help: str
    values: Values | None
    is_repeated: bool


class Command(NamedTuple):
    """A command's words after `memory-agent`, its help in one sentence, its options, and its arguments by name."""

    words: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    arguments: tuple[tuple[str, Values], ...]
    is_last_repeated: bool
    is_group: bool


class Tree(NamedTuple):
    """All commands, including those of groups, by their words; `()` is the program itself. `settings`: all names."""

    version: str
    data_dir: str
    settings: tuple[str, ...]
    commands: Mapping[tuple[str, ...], Command]

    def below(self, words: tuple[str, ...]) -> list[Command]:
        return [one for one in self.commands.values() if one.words[:-1] == words and one.words]

    def groups(self) -> list[str]:
        return [one.words[0] for one in self.below(()) if one.is_group]

    def head(self, shell: str) -> str:
        return f"# Completion of memory-agent {self.version} for {shell}, written by `{MARK}`"


_OFFERS: Mapping[What, tuple[str, str, str]] = {
    "files": ("_memory_agent_paths -f", "_files", "-F"),
    "folders": ("_memory_agent_paths -d", "_files -/", "-a '(__fish_complete_directories)'"),
    "settings": ("_memory_agent_settings", "_memory_agent_settings", "-a '(__memory_agent_settings)'"),
    "users": ("_memory_agent_users", "_memory_agent_users", "-a '(__memory_agent_users)'"),
}
"""The code that offers values of each kind in bash, zsh and fish."""


def _lines(*parts: str | Iterable[str]) -> str:
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part)) + "\n"


_BASH = r"""
_memory_agent_offer() {
    local IFS=$' \t\n'
    COMPREPLY=($(compgen -W "$1" -- "$current"))
}

_memory_agent_paths() {
    local IFS=$'\n'
    compopt -o filenames 2> /dev/null
    COMPREPLY=($(compgen "$1" -- "$current"))
}

_memory_agent_users() {
    local folder=${MEMORY_AGENT_DATA_DIR:-@FOLDER@} user users=
    for user in "$folder"/users/*/; do
        user=${user%/} user=${user##*/}
        # compgen would execute a `$(command)`; and a folder whose name is encoded does not have the user's name.
        [[ $user == *[!a-z0-9_.-]* ]] || users="$users $user"
    done
    _memory_agent_offer "$users"
}

_memory_agent_settings() {
    compopt -o nospace 2> /dev/null
    _memory_agent_offer "@SETTINGS@"
}

_memory_agent() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command= options= i
    COMPREPLY=()
    if [[ $current == "=" ]]; then
        current=
    elif [[ $previous == "=" ]] && ((COMP_CWORD > 2)); then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -* ]] && continue
        command=${command:+$command }${COMP_WORDS[i]}
        case $command in
        @GROUPS@) ;;
        *) break ;;
        esac
    done
    case $command in"""
_BASH_END = r"""    esac
    [[ $current == -* ]] && _memory_agent_offer "$options"
}

complete -F _memory_agent memory-agent"""


def bash_script(tree: Tree) -> str:
    start = _filled(_BASH, tree, " | ", _quoted)
    cases = (line for command in tree.commands.values() for line in _bash_case(tree, command))
    return _lines(tree.head("bash"), start, cases, _BASH_END)


def _bash_case(tree: Tree, command: Command) -> Iterator[str]:
    below = tree.below(command.words)
    yield f'    "{" ".join(command.words)}")'
    yield f'        options="{" ".join(name for option in command.options for name in option.names)}"'
    names: dict[str, list[str]] = {}
    for option in command.options:
        if option.values is not None:
            names.setdefault(_bash_offer(option.values), []).extend(option.names)
    if names:
        yield "        case $previous in"
        yield from (f"        {' | '.join(own)}) {offer}return ;;" for offer, own in names.items())
        yield "        esac"
    words = Values(tuple(one.words[-1] for one in below)) if below else _of_arguments(command)
    if words.what != "text":
        yield f"        [[ $current == -* ]] || {_bash_offer(words).removesuffix('; ')}"
    yield "        ;;"


def _bash_offer(values: Values) -> str:
    if values.what == "choices":
        return f'_memory_agent_offer "{" ".join(values.choices)}"; '
    return "" if values.what == "text" else f"{_OFFERS[values.what][0]}; "


def _of_arguments(command: Command) -> Values:
    known = [values for _, values in command.arguments if values.what != "text"]
    return known[0] if known else Values(what="text")


_ZSH = r"""
_memory_agent_users() {
  local folder=${MEMORY_AGENT_DATA_DIR:-@FOLDER@}
  local -a users=($folder/users/*(/N:t))
  compadd -- ${users:#*[^a-z0-9_.-]*}
}

_memory_agent_settings() {
  compadd -S '' -- @SETTINGS@
}
"""


def zsh_script(tree: Tree) -> str:
    functions = (line for one in tree.commands.values() for line in _zsh_function(tree, one))
    start = _filled(_ZSH, tree, " ", _quoted)
    return _lines("#compdef memory-agent", tree.head("zsh"), start, functions, '_memory_agent "$@"')


def _zsh_function(tree: Tree, command: Command) -> Iterator[str]:
    below = tree.below(command.words)
    yield f"{_zsh_name(command.words)}() {{"
    specifications = [spec for option in command.options for spec in _zsh_option(option)]
    if not below:
        arguments = _zsh_arguments(command)
        yield "  _arguments -S \\"
        yield from (f"    {spec} \\" for spec in (*specifications, *arguments))
        yield "    && return 0"
        yield "}\n"
        return
    yield "  local curcontext=$curcontext state state_descr line"
    yield "  typeset -A opt_args"
    yield "  local -a commands=("
    yield from (f"    {_quoted(_escaped(one.words[-1], ':') + ':' + one.help)}" for one in below)
    yield "  )"
    yield "  _arguments -C \\"
    yield from (f"    {spec} \\" for spec in specifications)
    yield "    '1: :->command' '*:: :->rest' && return 0"
    yield "  case $state in"
    yield "  command) _describe -t commands command commands ;;"
    yield "  rest)"
    yield "    case $words[1] in"
    yield from (f"    {one.words[-1]}) {_zsh_name(one.words)} ;;" for one in below)
    yield "    esac ;;"
    yield "  esac"
    yield "}\n"


def _zsh_name(words: tuple[str, ...]) -> str:
    return "_".join(("_memory_agent", *words)) + "_command" * bool(words)


def _zsh_option(option: Option) -> Iterator[str]:
    others = "" if option.is_repeated or len(option.names) == 1 else f"({' '.join(option.names)})"
    repeated = "*" if option.is_repeated else ""
    for name in option.names:
        is_long = name.startswith("--") and option.values is not None
        value = "" if option.values is None else f":{name.lstrip('-')}:{_zsh_action(option.values)}"
        yield _quoted(f"{others}{repeated}{name}{'=' * is_long}[{_escaped(option.help, '[]:')}]{value}")


def _zsh_arguments(command: Command) -> Iterator[str]:
    for place, (name, values) in enumerate(command.arguments, 1):
        is_repeated = command.is_last_repeated and place == len(command.arguments)
        # For free text: with the action `( )`, zsh also offers options; with a blank action, as for option values, it
        # does not.
        action = "( )" if values.what == "text" else _zsh_action(values)
        yield _quoted(f"{'*' if is_repeated else place}:{_escaped(name, ':')}:{action}")


def _zsh_action(values: Values) -> str:
    if values.what == "choices":
        return f"({' '.join(values.choices)})"
    return " " if values.what == "text" else _OFFERS[values.what][1]


_FISH = r"""
function __memory_agent_command
    set -l words (commandline -opc)
    set -l command
    for word in $words[2..]
        string match -q -- '-*' $word; and continue
        set -a command $word
        contains -- "$command" @GROUPS@; or break
    end
    echo "$command"
end

function __memory_agent_at
    test (__memory_agent_command) = "$argv[1]"
end

function __memory_agent_users
    set -l folder @FOLDER@
    set -q MEMORY_AGENT_DATA_DIR; and set folder $MEMORY_AGENT_DATA_DIR
    for user in $folder/users/*/
        string split -r -m 2 -f 2 / $user | string match -r '^[a-z0-9_.-]+$'
    end
end

function __memory_agent_settings
    string join \n @SETTINGS@
end

complete -c memory-agent -f"""


def fish_script(tree: Tree) -> str:
    start = _filled(_FISH, tree, " ", _fish_quoted)
    return _lines(tree.head("fish"), start, (line for one in tree.commands.values() for line in _fish_lines(tree, one)))


def _fish_lines(tree: Tree, command: Command) -> Iterator[str]:
    here = f"complete -c memory-agent -n '__memory_agent_at \"{' '.join(command.words)}\"'"
    for one in tree.below(command.words):
        yield f"{here} -a {one.words[-1]} -d {_fish_quoted(one.help)}"
    if values := _fish_values(_of_arguments(command)):
        yield f"{here} {values}"
    for option in command.options:
        names = (f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
        value = "" if option.values is None else f" {_fish_values(option.values) or '-x'}"
        value = value.replace(" -a", " -x -a").replace(" -F", " -r -F")
        yield f"{here} {' '.join(names)}{value} -d {_fish_quoted(option.help)}"


def _fish_values(values: Values) -> str:
    if values.what == "choices":
        return f"-a {_fish_quoted(' '.join(values.choices))}"
    return "" if values.what == "text" else _OFFERS[values.what][2]


def _filled(start: str, tree: Tree, between: str, quoted: Callable[[str], str]) -> str:
    """Return the start of a script, with the names of groups and settings and the data folder filled in."""
    settings = " ".join(f"{name}=" for name in tree.settings)
    filled = start.replace("@GROUPS@", between.join(tree.groups())).replace("@SETTINGS@", settings)
    return filled.replace("@FOLDER@", quoted(tree.data_dir))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _escaped(text: str, characters: str) -> str:
    for character in ("\\", *characters):
        text = text.replace(character, f"\\{character}")
    return text


SCRIPTS: Mapping[str, Callable[[Tree], str]] = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
"""The function that writes the script for each shell."""
