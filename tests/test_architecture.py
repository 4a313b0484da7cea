"""Test the layers of ops/ARCHITECTURE.md: imports go in one direction, and each engine is imported by one file."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("relay", "sona", "memory_agent")
ENGINES = frozenset(
    {
        "lmdb",
        "usearch",
        "onnxruntime",
        "onnx",
        "ray",
        "zmq",
        "sqlite3",
        "tokenizers",
        "safetensors",
        "matplotlib",
        "cryptography",
        "numkong",
        "Stemmer",
        "structlog",
        "starlette",
        "uvicorn",
        "fsspec",
        "httpx2",
        "prometheus_client",
        "sqlcipher3",
        "sqlite_vec",
        "psycopg",
        "lancedb",
        "pyarrow",
        "opentelemetry",
    }
)
FACES_OF_RELAY = frozenset(
    {
        "relay",
        "relay.access",
        "relay.crypto",
        "relay.disk",
        "relay.errors",
        "relay.future",
        "relay.locks",
        "relay.log",
        "relay.net",
    }
)
LONGEST_FILE_LINES = 600


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def imports_and_calls(file: Path) -> tuple[list[ast.Import | ast.ImportFrom], list[ast.Call]]:
    """Return the imports of a file, and its calls of msgspec. Cached, because a walk takes longer than a test."""
    imports: list[ast.Import | ast.ImportFrom] = []
    calls: list[ast.Call] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("msgspec."):
            calls.append(node)
    return imports, calls


def imported_packages(file: Path) -> set[str]:
    names: set[str] = set()
    for node in imports_and_calls(file)[0]:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_imports_go_one_way() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_each_engine_is_imported_in_one_file_of_a_package(package: str) -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in python_files(package):
        for engine in imported_packages(file) & ENGINES:
            places[engine].append(file.name)
    assert {engine: files for engine, files in places.items() if len(files) > 1} == {}


def public_names(module: str) -> list[str]:
    """Return the names that a module exports: its `__all__`, or else its public names."""
    face = import_module(module)
    return getattr(face, "__all__", None) or [name for name in vars(face) if not name.startswith("_")]


@pytest.mark.parametrize("module", sorted(FACES_OF_RELAY))
def test_a_face_has_every_name_that_it_offers(module: str) -> None:
    face = import_module(module)
    assert [name for name in public_names(module) if not hasattr(face, name)] == []


def test_memory_agent_imports_the_public_faces_of_relay_alone() -> None:
    inside = {}
    for file in python_files("memory_agent"):
        for node in imports_and_calls(file)[0]:
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if found := {name for name in names if name.partition(".")[0] == "relay"} - FACES_OF_RELAY:
                inside[str(file.relative_to(ROOT))] = found
            if isinstance(node, ast.ImportFrom) and node.module in FACES_OF_RELAY:
                public = set(public_names(node.module)) | {face.rpartition(".")[2] for face in FACES_OF_RELAY}
                assert {alias.name for alias in node.names} <= public, (file, node.module)
    assert inside == {}


def exported_names() -> dict[str, set[str]]:
    """Return the names in `__all__` by package, for each package with a public interface."""
    faces = {}
    for file in (file for package in PACKAGES[1:] for file in python_files(package) if file.name == "__init__.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                faces[".".join(file.parent.relative_to(ROOT).parts)] = set(ast.literal_eval(node.value))
    return faces


def test_names_that_a_face_exports_are_imported_from_it() -> None:
    faces, inside = exported_names(), []
    for file in (file for package in ("memory_agent", "ops") for file in python_files(package)):
        own = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in imports_and_calls(file)[0]:
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            package = node.module.rpartition(".")[0]
            if package in faces and package != "memory_agent" and not own.startswith(f"{package}."):
                inside += [f"{own}: {alias.name}" for alias in node.names if alias.name in faces[package]]
    assert inside == []


@pytest.mark.parametrize("engine", ["lmdb", "zmq"])
def test_an_engine_that_all_packages_share_is_imported_in_one_file(engine: str) -> None:
    files = [file for package in PACKAGES for file in python_files(package) if engine in imported_packages(file)]
    assert len(files) == 1, files


def test_sona_imports_only_numpy_and_msgspec() -> None:
    allowed = {
        "__future__",
        "numpy",
        "msgspec",
        "sona",
        "collections",
        "dataclasses",
        "functools",
        "typing",
        "math",
        "hashlib",
    }
    for file in python_files("sona"):
        assert imported_packages(file) <= allowed, file


def typed_decoding(file: Path) -> dict[int, ast.expr]:
    """Return the target type of each call that decodes or makes a decoder, by line."""
    types: dict[int, ast.expr] = {}
    for node in imports_and_calls(file)[1]:
        positional = {"Decoder": 0, "convert": 1}.get(ast.unparse(node.func).rpartition(".")[2])
        named = [keyword.value for keyword in node.keywords if keyword.arg == "type"]
        types |= {type_.lineno: type_ for type_ in named}
        if positional is not None and len(node.args) > positional:
            types[node.lineno] = node.args[positional]
    return types


@pytest.mark.parametrize("package", ["relay", "memory_agent"])
def test_types_are_described_before_threads_decode_them(package: str) -> None:
    """msgspec crashes if two threads decode a struct for the first time at once (`relay.described`)."""
    builtin = {"str", "int", "float", "bool", "bytes", "dict", "list", "tuple", "Any", "object"}
    for file in python_files(package):
        source = file.read_text(encoding="utf-8")
        for line, type_ in typed_decoding(file).items():
            names = {ast.unparse(part) for part in ast.walk(type_) if isinstance(part, ast.Name | ast.Attribute)}
            is_described = (
                ast.unparse(type_).startswith("described(") or f"\n{ast.unparse(type_)} = described(" in source
            )
            assert is_described or names <= builtin or file.name == "decoding.py", f"{file}:{line}"


def test_no_file_outgrows_its_room() -> None:
    files = [file for top in (*PACKAGES, "tests", "ops") for file in python_files(top)]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE_LINES} == {}


def test_every_folder_is_on_the_plan() -> None:
    plan = (ROOT / "ops" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = {file.parent.relative_to(ROOT) for package in PACKAGES for file in python_files(package)}
    assert {str(folder) for folder in folders if f"{folder.name}/**" not in plan} == set()


def test_test_files_have_names_of_their_own() -> None:
    files = (file for file in (ROOT / "tests").rglob("test_*.py") if not file.with_name("__init__.py").exists())
    names = Counter(file.name for file in files)
    assert [name for name, count in names.items() if count > 1] == []  # pytest would not collect the second file
