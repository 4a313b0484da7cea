"""Write the methods of the clients from the table of verbs, with the signatures and documentation of `Memory`."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_type_hints

from memory_agent.client.daemon_methods import DaemonMethods
from memory_agent.memory import Memory
from memory_agent.verbs.table import VERBS, Verb

Kind = Literal["sync", "async", "protocol"]

PACKAGE = Path(__file__).parents[2] / "memory_agent"
FILES: dict[Kind, Path] = {
    "sync": PACKAGE / "client" / "methods.py",
    "async": PACKAGE / "client" / "async_methods.py",
    "protocol": PACKAGE / "provider.py",
}
SPACES = get_type_hints(Memory)
"""The namespaces of a memory."""
EMBEDDED_ONLY = "now"
"""A parameter that clients of a daemon lack: they do not set its clock."""
_STANDARD = ("collections.abc", "datetime", "typing")
_WIDTH = 120


def client_pages(verbs: Iterable[Verb] = VERBS) -> dict[Path, str]:
    """Return the text of each written module by its file."""
    return {file: source(kind, verbs) for kind, file in FILES.items()}


def source(kind: Kind, verbs: Iterable[Verb] = VERBS) -> str:
    """Return one module: a class for each namespace, then the class of the memory."""
    chosen = [verb for verb in verbs if not verb.is_inner and (verb.is_embedded or kind != "protocol")]
    by_space: defaultdict[str, list[Verb]] = defaultdict(list)
    for verb in chosen:
        by_space[verb.method.rpartition(".")[0]].append(verb)
    imports: defaultdict[str, set[str]] = defaultdict(set)
    own = by_space.pop("", [])
    classes = [_space(kind, space, inside, imports) for space, inside in by_space.items()]
    classes.append(_memory(kind, list(by_space), own, imports))
    return _formatted("\n\n".join([_head(kind, imports), *classes]))


def declared(verb: Verb) -> Callable[..., Any]:
    """Return the function that has the verb's signature and documentation."""
    space, _, name = verb.method.rpartition(".")
    owner: Any = (SPACES[space] if space else Memory) if verb.is_embedded else DaemonMethods
    function: Callable[..., Any] = getattr(owner, name)
    return function


def _head(kind: Kind, imports: defaultdict[str, set[str]]) -> str:
    what = {
        "sync": "The methods of every blocking client: of the memory, and of its namespaces.",
        "async": "The methods of a client inside an event loop: of the memory, and of its namespaces.",
        "protocol": "The protocol that an embedded `Memory` and every blocking client of a daemon satisfy.",
    }[kind]
    imports["typing"].add("Protocol")
    if kind != "protocol":
        imports["typing"].add("Any")
    if kind == "async":
        imports["collections.abc"].add("Awaitable")
    if kind == "protocol":
        imports["typing"].add("runtime_checkable")
    groups = [[module for module in imports if (module in _STANDARD) is standard] for standard in (True, False)]
    lines = [
        f'"""{what}\n\nWritten by `python -m ops.documents` from `memory_agent.verbs` and the methods of `Memory`: '
        'edit those.\n"""\n',
        "from __future__ import annotations\n",
        *("".join(_import(module, imports[module]) for module in sorted(group)) for group in groups if group),
    ]
    if kind == "protocol":
        return "\n".join(lines)
    result = "Any" if kind == "sync" else "Awaitable[Any]"
    return "\n".join(
        [
            lines[0],
            '# mypy: disable-error-code="no-any-return"',
            *lines[1:],
            "class Ask(Protocol):",
            '    """Asks for a verb by the name of its method."""\n',
            f"    def __call__(self, method: str, /, **arguments: Any) -> {result}: ...",
        ]
    )


def _import(module: str, names: set[str]) -> str:
    return f"from {module} import ({', '.join(sorted(names))})\n"


def _space(kind: Kind, space: str, verbs: list[Verb], imports: defaultdict[str, set[str]]) -> str:
    documentation = inspect.cleandoc(SPACES[space].__doc__ or "").partition("\n")[0]
    name = _class_name(kind, space.capitalize())
    head = [f"class {name}{'(Protocol)' if kind == 'protocol' else ''}:", f'    """{documentation}"""\n']
    if kind != "protocol":
        head += ["    def __init__(self, ask: Ask) -> None:", "        self._ask = ask\n"]
    return "\n".join(head + [_method(kind, verb, imports) for verb in verbs])


def _memory(kind: Kind, spaces: list[str], verbs: list[Verb], imports: defaultdict[str, set[str]]) -> str:
    methods = [_method(kind, verb, imports) for verb in verbs]
    if kind == "protocol":
        head = [
            "@runtime_checkable",
            "class MemoryProvider(Protocol):",
            '    """One user\'s memory: `Memory`, `MemoryClient` and `ActorMemoryProvider` satisfy it."""\n',
        ]
        for space in spaces:
            documentation = inspect.cleandoc(SPACES[space].__doc__ or "").partition("\n")[0]
            head += ["    @property", f"    def {space}(self) -> {_class_name(kind, space.capitalize())}:"]
            head += [f'        """{documentation}"""', "        ...\n"]
        return "\n".join(head + methods)
    head = [
        f"class {_class_name(kind, 'Memory')}:",
        '    """The methods of a memory and of its daemon."""\n',
        "    def __init__(self, ask: Ask) -> None:",
        "        self._ask = ask",
        *(f"        self.{space} = {_class_name(kind, space.capitalize())}(ask)" for space in spaces),
        "",
    ]
    return "\n".join(head + methods)


def _class_name(kind: Kind, name: str) -> str:
    return {"sync": f"{name}Methods", "async": f"Async{name}Methods", "protocol": f"{name}Provider"}[kind]


def _method(kind: Kind, verb: Verb, imports: defaultdict[str, set[str]]) -> str:
    function = declared(verb)
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.name not in ("self", EMBEDDED_ONLY)]
    known = _imports_of(function)
    for annotation in (signature.return_annotation, *(one.annotation for one in own)):
        for name in re.findall(r"[A-Za-z_]\w*", annotation):
            if name in known:
                imports[known[name]].add(name)
    name = verb.method.rpartition(".")[2]
    documentation = inspect.cleandoc(function.__doc__ or verb.summary)
    if kind != "sync" or verb.is_embedded:
        documentation = _without_example(documentation)
    documentation = textwrap.indent(documentation, " " * 8).strip()
    if "\n" in documentation:
        documentation += "\n        "
    lines = [
        f"    {'async ' if kind == 'async' else ''}def {name}({_parameters(own)}) -> {signature.return_annotation}:",
        f'        """{documentation}"""',
    ]
    if kind == "protocol":
        return "\n".join([*lines, "        ...\n"])
    asked = ", ".join([f'"{verb.method}"', *map(_passed, own)])
    return "\n".join([*lines, f"        return {'await ' if kind == 'async' else ''}self._ask({asked})\n"])


def _without_example(documentation: str) -> str:
    """Return a docstring up to its example, which uses an embedded memory or a blocking client."""
    return documentation.partition("\n\n>>> ")[0]


def _passed(parameter: inspect.Parameter) -> str:
    is_rest = parameter.kind is inspect.Parameter.VAR_KEYWORD
    return f"**{parameter.name}" if is_rest else f"{parameter.name}={parameter.name}"


def _parameters(parameters: list[inspect.Parameter]) -> str:
    parts = ["self"]
    for one in parameters:
        if one.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = "" if one.default is inspect.Parameter.empty else f" = {_literal(one.default)}"
        star = "**" if one.kind is inspect.Parameter.VAR_KEYWORD else ""
        parts.append(f"{star}{one.name}: {one.annotation}{default}")
    return ", ".join(parts)


def _literal(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _imports_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return, for each name, the module from which the function's module imports it."""
    tree = ast.parse(Path(inspect.getfile(function)).read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: node.module for alias in node.names}
    return found


def _formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "format", "--stdin-filename", "methods.py", "--line-length", str(_WIDTH), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
