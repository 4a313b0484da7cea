"""Check this machine and a data folder, with advice for each failed check.

Changes nothing: the test memory is in a temporary folder. Queries the folder's daemon if one is running.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from memory_agent.care import engines_of_users, store_encryptions
from memory_agent.client import MemoryClient
from memory_agent.daemon.capacity import capacity_here, usable_memory_bytes
from memory_agent.doors.http.guard import place_of
from memory_agent.embedders import open_embedder
from memory_agent.embedders.cache import advise, model_status
from memory_agent.embedders.lanes import usable_cores
from memory_agent.embedders.providers import ProviderEmbedder
from memory_agent.embedders.schemes import choose_scheme
from memory_agent.embedders.weights import cache_folder
from memory_agent.errors import MemoryAgentError
from memory_agent.indexes import SHARED, IndexOf, open_index, users_in_database
from memory_agent.layout import Layout
from memory_agent.memory import Memory
from memory_agent.model_apis import is_loopback
from memory_agent.rerankers import SERVERS, Judge, Snippet, endpoint_of
from memory_agent.settings import EmbedderSettings, RemoteEmbedder, Settings
from memory_agent.signals import SignalTable
from memory_agent.storage.folders import known_users, user_folder
from memory_agent.tracing import find_export_problem
from memory_agent.triggers.table import TriggerTable
from memory_agent.verbs.protocol import DEFAULT_USER
from memory_agent.version import VERSION
from relay import CURVE, EncryptionSettings, RelayError
from relay.crypto import open_key_ring

State = Literal["ok", "warning", "failed"]

_ENGINES = (
    "lmdb", "usearch", "numkong", "onnxruntime", "tokenizers", "PyStemmer", "ray", "pyzmq", "msgspec", "numpy",
)  # fmt: skip
_OPTIONAL = "ray"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)", re.MULTILINE)
_FETCH = "memory-agent model fetch"
_DISK_WARNING_BYTES = 1 << 30
_DISK_LEAST_BYTES = 64 << 20
_HANDLES_WARNING = 4096
_HANDLES_LEAST = 256
_KEYS_AWAY = "mount the keys folder there, or set encryption.keys_folder to its path"
_TESTS = ("The deploy hung because the VPN was down.", "Tests of the parser pass again.", "Lunch is at noon.")
_TEST_QUERY = "why did the deploy hang"


class Finding(NamedTuple):
    """What a check function found, with advice if the check did not pass."""

    state: State
    detail: str
    advice: str = ""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A reported finding, with the check's name and duration."""

    name: str
    state: State
    detail: str
    advice: str
    took_ms: float


def examine(settings: Settings, data_dir: Path) -> Iterator[Check]:
    """Run the checks in order. A check fails if it raises one of our errors or `OSError`."""
    layout = Layout(data_dir)
    for name, check, advice in _CHECKS:
        started_s = time.monotonic()
        try:
            finding = check(settings, layout)
        except (MemoryAgentError, RelayError, OSError) as error:
            finding = Finding("failed", str(error), advice)
        took_ms = round((time.monotonic() - started_s) * 1000, 1)
        yield Check(name=name, state=finding.state, detail=finding.detail, advice=finding.advice, took_ms=took_ms)


def check_versions(_settings: Settings, _layout: Layout) -> Finding:
    required = dict(_REQUIREMENT.findall("\n".join(importlib.metadata.requires("memory-agent") or ())))
    found = {name: _version(name) for name in _ENGINES}
    wrong = {
        f"{name}>={required[name]}": f"{name} {version or 'is missing'}; {required[name]} or later is required"
        for name, version in found.items()
        if name in required and _number(version) < _number(required[name]) and (version or name != _OPTIONAL)
    }
    if wrong:
        return Finding("failed", "; ".join(wrong.values()), f"pip install {' '.join(map(shlex.quote, wrong))}")
    shown = ", ".join(
        f"{name} {version or '(not installed: serve runs as one process)'}" for name, version in found.items()
    )
    return Finding("ok", f"Python {platform.python_version()}, {shown}")


def check_processor(settings: Settings, _layout: Layout) -> Finding:
    if not isinstance(settings.embedder, EmbedderSettings):
        return Finding("ok", "not used: the model runs on a server")
    choice = choose_scheme(settings.embedder.scheme)
    detail = f"{choice.scheme}: {choice.reason}"
    if choice.kernels == "saturating":
        advice = "set embedder.scheme to auto; int8 produces worse vectors on this processor"
        return Finding("warning", detail, advice)
    if choice.scheme == "float32" and settings.embedder.scheme == "auto":
        return Finding("warning", detail, "no action needed; embedding takes about three times as long as with VNNI")
    return Finding("ok", detail)


def check_capacity(settings: Settings, _layout: Layout) -> Finding:
    chosen = capacity_here(settings.daemon)
    machine = f"{usable_cores()} cores, {usable_memory_bytes() / 1e9:.0f} GB"
    hosts = f"{chosen.dedicated_hosts} single-user hosts, {chosen.shared_hosts} shared, {chosen.spare_hosts} spare"
    return Finding("ok", f"{machine}: up to {hosts}; {chosen.requests_in_flight} concurrent requests")


def check_model(settings: Settings, _layout: Layout) -> Finding:
    if not isinstance(settings.embedder, EmbedderSettings):
        return _server_of(settings.embedder)
    status = model_status(settings.embedder)
    if status.state in ("missing", "refused"):
        return Finding("failed", status.problem, advise(status.state, settings.embedder))
    detail = f"{status.model} ({status.model_sha256[:12]}…), {status.scheme}, from {status.origin}"
    if status.state == "unbuilt":
        return Finding("warning", f"{detail}; its graph is not built yet", advise(status.state, settings.embedder))
    return Finding("ok", detail)


def _server_of(settings: RemoteEmbedder) -> Finding:
    server = f"{settings.model} at {settings.url}"
    if is_loopback(settings.url):
        return Finding("ok", f"{server}: texts stay on this machine, unless that server forwards them")
    detail = f"{server}: the texts of all memories and queries leave this machine"
    return Finding("warning", detail, "no action needed if that is intended; embedder.type = local sends nothing")


def check_embedding(settings: Settings, _layout: Layout) -> Finding:
    embedder = open_embedder(settings.embedder)
    try:
        first, again = embedder.embed_query(_TEST_QUERY), embedder.embed_texts([_TEST_QUERY])[0]
    finally:
        embedder.close()
    if isinstance(embedder, ProviderEmbedder):  # it has compared the two vectors itself; they may differ
        return Finding("ok", f"{embedder.info.ndim} dimensions, from the server")
    length = float(np.linalg.norm(first))
    if first.shape != (embedder.info.ndim,) or abs(length - 1) > 1e-3 or not np.array_equal(first, again):
        return Finding("failed", f"the vector has length {length:.4f} or changes between calls", _FETCH)
    return Finding("ok", f"{embedder.info.ndim} dimensions, length 1, bit-identical when repeated")


def check_recall(settings: Settings, _layout: Layout) -> Finding:
    with tempfile.TemporaryDirectory(prefix="memory-doctor-") as folder, _open_memory(settings, Path(folder)) as memory:
        records = [memory.remember(text, now=datetime.now(UTC)) for text in _TESTS]
        result = memory.recall(_TEST_QUERY, len(_TESTS), deadline_ms=30_000, min_relevance=0.0)
    if not result.memories or result.memories[0].record.id != records[0].id:
        return Finding("failed", "a memory that was just stored was not found", "run the tests, or report a bug")
    if result.degraded:
        return Finding("failed", f"degraded: {', '.join(result.degraded)}", "see the checks above")
    return Finding("ok", f"ranked first of {len(_TESTS)} in {result.took_ms:.1f} ms")


def check_judge(settings: Settings, _layout: Layout) -> Finding:
    """Report the judge and the data that it receives. Sends it test texts."""
    judge = settings.judge
    tester = Judge(judge, settings.recall.deadline_ms)
    if judge.server == "off":
        unused = [f"judge.{name}" for name in ("url", "model", "api_key") if getattr(judge, name)]
        if unused:
            advice = "set judge.server to openai or anthropic, or remove the other settings"
            return Finding("warning", f"off, although {', '.join(unused)} is set", advice)
        return Finding("ok", "off: nothing is sent to a language model")
    sent = f"each query and up to {judge.candidates} snippets of {judge.snippet_chars} characters"
    receiver = judge.server  # a function
    if judge.server in SERVERS:
        url = endpoint_of(judge).url
        receiver = f"{judge.model} at {url} ({'' if is_loopback(url) else 'not '}on this machine)"
    detail = f"{receiver} receives {sent}"
    snippets = [Snippet(id=text, text=text, score=0.0, timestamp=datetime.now(UTC)) for text in _TESTS]
    with closing(tester):
        verdict = tester.select(_TEST_QUERY, snippets, settings.recall.deadline_ms / 1000)
    if verdict.fault is not None:
        detail += f"; {verdict.fault}: {verdict.problem}"
        return Finding("failed", detail, "until this is corrected, answers are ranked by score")
    return Finding("ok", detail)


def check_traces(settings: Settings, _layout: Layout) -> Finding:
    """Report the destination and the content of traces. Sends an export without spans to the collector."""
    url = settings.tracing.endpoint
    if not url:
        return Finding("ok", "off: no traces are exported")
    problem = find_export_problem(settings.tracing)
    ids = ", and the ids of users and memories" if settings.tracing.ids else ""
    place = "" if is_loopback(url) else "not "
    detail = f"{url} ({place}on this machine) receives the names, figures and times of requests{ids}"
    if problem:
        return Finding("failed", f"{detail}; {problem}", "start the collector, or correct tracing.endpoint")
    return Finding("ok", detail)


def check_folders(_settings: Settings, layout: Layout) -> Finding:
    for place in map(_existing, (layout.data_dir, cache_folder())):
        if not os.access(place, os.W_OK | os.X_OK):
            advice = f"chown or chmod {place}, or choose another folder with --data-dir"
            return Finding("failed", f"{place} cannot be written", advice)
    private = (layout.data_dir, layout.run, *(layout.data_dir / name for name in ("token", "keys.json", "curve.json")))
    open_to_others = [path for path in private if path.exists() and path.stat().st_mode & 0o077]
    if open_to_others:
        names = " ".join(map(str, open_to_others))
        return Finding("failed", f"readable by other users: {names}", f"chmod go-rwx {names}")
    return Finding("ok", f"{layout.data_dir}{'' if layout.data_dir.exists() else ' (created at the first start)'}")


def check_encryption(settings: Settings, layout: Layout) -> Finding:
    keys = open_key_ring(settings.encryption, layout.data_dir)
    if keys is not None and keys.is_away():
        return Finding("failed", f"{keys.folder} does not contain the keys of {layout.data_dir}", _KEYS_AWAY)
    stores = store_encryptions(layout.data_dir, settings, keys)
    looked_at = stores if keys is not None else islice(stores, 1)  # without encryption, checking one store is enough
    states = {store.part: store.state for store in looked_at}
    plain, locked = ([part for part in states if states[part] == state] for state in ("plain", "locked"))
    if keys is None:
        if locked:
            return Finding("failed", f"encrypted: {', '.join(locked)}", "set encryption.keys_folder to the keys folder")
        return Finding("ok", "off: anyone who can read the disk can read the memories")
    files = [keys.folder, *keys.folder.glob("*")]
    if any(file.stat().st_mode & 0o077 for file in files if file.exists()):
        return Finding("failed", f"readable by other users: {keys.folder}", f"chmod -R go-rwx {keys.folder}")
    if plain:
        return Finding("failed", f"not encrypted: {', '.join(plain)}", "stop the daemon, then: memory-agent encrypt")
    if locked:
        advice = (
            f"restore the keys in {keys.folder}, or erase the remaining data: memory-agent forget --user ID --user-all"
        )
        return Finding("warning", f"key not found: {', '.join(locked)}", advice)
    return Finding("ok", f"on: {len(states)} stores, keys in {keys.folder}")


def check_index(settings: Settings, layout: Layout) -> Finding:
    """Check that the index for new users can be opened, and that a shared database contains only existing users."""
    chosen = settings.index
    secret = bytes(32) if settings.encryption.keys_folder else None
    if chosen.engine != "builtin":
        with tempfile.TemporaryDirectory(prefix="memory-doctor-") as folder:
            index = open_index(chosen.engine, IndexOf(chosen, DEFAULT_USER, Path(folder), secret))
            with closing(index):
                index.count()
    if not chosen.url:
        engines = engines_of_users(layout.data_dir, settings, known_users(layout.data_dir))
        if users := [user_id for user_id, engine in engines if engine == SHARED]:
            advice = "set index.url to their database, or rebuild them: memory-agent migrate --to builtin"
            return Finding("failed", f"index.url is empty, but pgvector has the vectors of {', '.join(users)}", advice)
    strangers = sorted({*users_in_database(chosen)} - {*known_users(layout.data_dir)})
    if strangers:
        advice = (
            "erase them: memory-agent forget --user ID --user-all; or give each data folder its own database_schema"
        )
        return Finding("warning", f"the database contains users without a store here: {', '.join(strangers)}", advice)
    return Finding("ok", f"{chosen.engine}{' and the database of index.url' if chosen.url else ''}")


def check_tables(settings: Settings, _layout: Layout) -> Finding:
    SignalTable.load(settings.ingest.signals)
    TriggerTable.load(settings.triggers.table)
    tables = settings.relay.broker.tables
    problems = []
    if tables:
        from relay import table_problem  # imported here, because some builds of Python lack sqlite3

        problems = [f"{table.name}: {problem}" for table in tables if (problem := table_problem(table))]
    if problems:
        advice = "correct the path or the table in relay.broker.tables, or start the program that writes it"
        return Finding("failed", "; ".join(problems), advice)
    own = (file for file in (settings.ingest.signals, settings.triggers.table) if file)
    followed = (f"{table.name} ({table.path})" for table in tables)
    return Finding("ok", ", ".join((*own, *followed)) or "built-in tables; no event tables are followed")


def check_disk(_settings: Settings, layout: Layout) -> Finding:
    free = shutil.disk_usage(_existing(layout.data_dir)).free
    detail = f"{free / 1e9:.1f} GB free for {layout.data_dir}"
    advice = "free some space, or choose a --data-dir on another disk; 10,000 memories take about 25 MB"
    if free < _DISK_LEAST_BYTES:
        return Finding("failed", detail, advice)
    return Finding("warning", detail, advice) if free < _DISK_WARNING_BYTES else Finding("ok", detail)


def check_sockets(settings: Settings, layout: Layout) -> Finding:
    """Check that the daemon can listen: socket paths are short enough, and ports are free."""
    longest = max((layout.gateway, layout.embedder, f"ipc://{layout.run / 'relay-feed.sock'}"), key=len)
    broker = settings.relay.broker
    place = place_of(settings.daemon.http)
    http = () if place is None or not place.port else (f"tcp://{settings.daemon.http.listen}",)
    endpoints = (*settings.daemon.listen, *broker.listen, *broker.feed_listen, *broker.pub_bind, *http)
    if not layout.daemon_runs():
        for endpoint in endpoints:
            _try_to_listen(endpoint)
    detail = f"longest socket path: {len(os.fsencode(longest.removeprefix('ipc://')))} bytes"
    return Finding("ok", ", ".join((detail, *endpoints)))


def check_handles(_settings: Settings, _layout: Layout) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"run ulimit -n {hard if hard > 0 else 65536} before starting the daemon (or set LimitNOFILE= in its unit)"
    detail = f"{soft} open files allowed"
    if soft < _HANDLES_LEAST:
        return Finding("failed", detail, advice)
    return Finding("warning", detail, advice) if soft < _HANDLES_WARNING else Finding("ok", detail)


def check_daemon(_settings: Settings, layout: Layout) -> Finding:
    if not layout.daemon_runs():
        return Finding("ok", f"not running; start it with: memory-agent serve --data-dir {layout.data_dir}")
    with MemoryClient(data_dir=layout.data_dir) as client:
        status = client.status()
    down = [part.name for part in status.parts if part.state != "running"]
    if down or not status.journal:
        names = ", ".join(down) or "relay"
        return Finding("failed", f"not running or not responding: {names}", "see the daemon's log on standard error")
    shown = f"version {status.version} is running; up {status.uptime_s:g} s, {len(status.parts)} processes"
    if status.version != VERSION:
        return Finding("warning", f"{shown}; {VERSION} is installed", "restart it: memory-agent stop")
    return Finding("ok", shown)


_CHECKS: tuple[tuple[str, Callable[[Settings, Layout], Finding], str], ...] = (
    ("versions", check_versions, "install the missing package"),
    ("processor", check_processor, "set embedder.scheme to auto, int8 or float32"),
    ("capacity", check_capacity, "see the [daemon] table in the settings"),
    ("model", check_model, "see the check above"),
    ("embedding", check_embedding, "see the check above"),
    ("recall", check_recall, "see the check above"),
    ("judge", check_judge, "correct the setting in the message"),
    ("traces", check_traces, "correct the [tracing] table in the settings"),
    ("folders", check_folders, "choose another folder with --data-dir"),
    ("encryption", check_encryption, "check encryption.keys_folder, and run memory-agent encryption status"),
    ("index", check_index, "correct the [index] table in the settings, and check that the database is running"),
    ("tables", check_tables, "correct the file or the setting that names it"),
    ("disk", check_disk, "choose another folder with --data-dir"),
    ("sockets", check_sockets, "choose another port, stop the process that uses it, or choose a shorter --data-dir"),
    ("file handles", check_handles, "raise the limit with ulimit -n"),
    ("daemon", check_daemon, "restart the daemon, and see its log on standard error"),
)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _open_memory(settings: Settings, folder: Path) -> Memory:
    keys_folder = str(folder / "keys") if settings.encryption.keys_folder else ""  # no key in the real folder
    return Memory.open(
        user_folder(folder / "data", DEFAULT_USER),
        user_id=DEFAULT_USER,
        embedder_settings=settings.embedder,
        store_settings=settings.store,
        ingest_settings=settings.ingest,
        recall_settings=settings.recall,
        encryption_settings=EncryptionSettings(keys_folder=keys_folder),
    )


def _existing(path: Path) -> Path:
    """Return `path`, or its closest existing parent."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _try_to_listen(endpoint: str) -> None:
    """Raise `OSError` if a TCP endpoint cannot be bound. Other endpoints are socket files and are ignored."""
    endpoint = endpoint.removeprefix(CURVE)
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not port.isdigit():
        return
    address = (host.strip("[]").replace("*", ""), int(port))
    try:
        with socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET):
            pass
    except OSError as error:
        raise OSError(f"{endpoint}: {error.strerror or error}") from error
