"""Fuzz targets for files and values: journal entries, records, indexes, checkpoints, keys, settings, pages.

Most of them have a checksum, which keeps a fuzzer from reaching the code behind it. Each input is therefore read twice:
unchanged, and with a valid checksum, as the body of a value that a faulty version of this program could have written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from bus_targets import LIMITS, NOW, PACKED, SETTINGS, scratch
from target import Target, refused

from memory_agent.care import read_manifest
from memory_agent.care.export import Bodies, decode_head, decode_line, encode_line
from memory_agent.cli.publish import BadLine, event_lines
from memory_agent.doors.bodies import decode_body
from memory_agent.doors.http.page.sessions import Secrets, Sessions, SignIn
from memory_agent.erasure import logs, retention
from memory_agent.erasure.logs import INTENT_FILE, read_history, read_intent
from memory_agent.knowledge import items
from memory_agent.learning import export as runs_export
from memory_agent.learning import learner
from memory_agent.records.memories import MemoryRecord
from memory_agent.records.shared import SharedContent
from memory_agent.records.shared_content import attachment_of
from memory_agent.settings import load_settings
from memory_agent.signals import SignalTable
from memory_agent.storage import codec, stored_runs
from memory_agent.storage.array_file import read_arrays, write_arrays
from memory_agent.storage.derived import ColumnsHeader
from relay import CurvePair, EncryptionKeyMissingError, Journal, event_from_mapping, read_key_file
from relay import load_settings as load_relay_settings
from relay.access import key_file
from relay.crypto import KeyRing
from relay.disk import pages
from relay.journal import entries
from relay.journal.sealing import Sealing
from sona import Comparison, Contest, Learner, Lesson, checkpoint

Read = Callable[[bytes], object]
NUMBER = 7
KEY = b"\0" * 7 + b"\1"
RUN = stored_runs.StoredTrajectory(
    id="run-1",
    number=1,
    marks=(stored_runs.Mark(1_000, "e-1", "conductor.run.started", "begin", row=3, named=(3, 4)),),
    recalls=("r-1",),
    inferred=((3, "r-1"),),
    began_us=1_000,
    ended_us=2_000,
    outcome="completed",
    recall_ids=("r-1",),
    used=(stored_runs.StoredUse(3, "feedback", 1.0, "r-1"),),
    revisions=(stored_runs.StoredRevision(0.7, "completed", 2_000),),
)
NOTE = stored_runs.RecallNote("r-1", 900, vector=b"\0\x3c" * 4, shown=(stored_runs.Shown(3, 1, (4,)),), size=1)
HEADER = ColumnsHeader(version="1", lineage="l", stamp="s", applied=1)
ARRAYS = {"rows": np.arange(3), "coarse": [np.ones((2, 4), np.int8), np.zeros((1, 4), np.int8)]}
KEYS = (
    b'{"version":1,"keys":[{"id":"local","created":"2026-11-21T09:00:00Z","scopes":["publish","recall","admin"],'
    b'"token_sha256":"ab"},{"id":"b","created":"2026-11-21T09:00:00Z","scopes":["recall"],"user_id":"bob",'
    b'"curve_public":"x","revoked":"2026-11-21T10:00:00Z"},{"id":"c","created":"2026-11-21T09:00:00Z",'
    b'"scopes":["share","shared-admin"],"orgs":["acme","labs"],"tier":"pro","token_sha256":"cd"}]}',
    b'{"id":"b","user_id":"bob","token":"t","public":"p","secret":"s","server":"v"}',
    b'["public","secret"]',
)
MANIFEST = (
    b'{"format":1,"version":"0.1.0","made_at":"2026-11-21T09:00:00Z","parts":[{"part":"journal","path":"journal/data.mdb",'
    b'"bytes":4,"sha256":"ab","entries":1}],"left_out":["bob"]}',
)
INTENTS = (b'{"started_at":"2026-11-21T09:00:00Z","record_ids":["m"],"with_journal":true,"expired":{"r":["n"]}}',)
HISTORIES = (
    logs._encode(logs.HistoryEntry(at=NOW, memories=("ab",), events=("cd",), sessions=("ef",), by_rule={"r": 1})),
    logs._encode(logs.HistoryEntry(at=NOW, everything=True)) * 2,
)
NOTES = (b'{"rules":"ab","epoch":3,"through":7,"next_at":"2026-11-21T09:00:00Z","looked_at":null}',)
VECTOR = np.asarray([1, 0, 0, 0], "<f2").tobytes()
PASSAGES = np.asarray([[0, 9], [5, 12]], "<i4").tobytes() + VECTOR
WORDS = (7).to_bytes(4, "little") + b"\5\6"
"""Values of 2 passages and 2 words, in a store of 4 dimensions."""
BODIES = Bodies(VECTOR, PASSAGES, WORDS)
LINES = (
    encode_line(
        MemoryRecord(id="m", text="t", source="user_input", kind="episode", timestamp=NOW, metadata={"a": [1]}),
        BODIES,
        [b"e-1", b"\xff" * 17],
    ),
    b'{"memory_agent_export":1,"user_id":"alice","stamp":"s","ndim":4,"memories":1,"words_stamp":"w","word_bytes":1}',
)
ITEM = SharedContent(
    item_id="01KHJY9080NWG22H9Q8BBD7B80",
    content_type="document",
    title="t",
    summary="s",
    version="1",
    body="b",
    attachment=attachment_of(b"[x]", "rules.toml"),
)
ITEM_LINES = (
    encode_line(
        items.record_of(
            ITEM,
            "user-" + "0" * 20,
            NOW,
        ),
        Bodies(),
        [],
        b"[x]",
    ),
)
ITEM_HEAD = decode_head(b'{"memory_agent_export":2,"user_id":"shared-knowledge"}')
SETTINGS_FILES = (
    b'log_level = "debug"\n[relay.journal]\nmap_size_bytes = 1048576\n[recall]\nvector_weight = 0.5\n'
    b'[relay.masking.patterns]\nmy = "x{3}"\n',
    b'[[relay.broker.tables]]\nname = "t"\npath = "p"\n[ingest]\nmin_text_chars = 3\n[daemon]\n',
)
SIGNALS = (
    b'[signal.mine]\nevents = ["my.event", "my.*"]\nsource = "user_input"\nkind = "episode"\n'
    b'text = ["Said: text | payload.text", "+ Why: reason[]"]\nquality = 0.5\n[fallback]\ntext = "summary"\n',
    b'remove = ["chat"]\n[noise.mine]\nwords = ["ping"]\ntext = "(a|b)+"\n[outcomes]\ndone = 1.0\n',
)


def _record() -> bytes:
    record = MemoryRecord(
        id="m-1",
        text="Restart the worker " * 40,
        source="user_input",
        kind="episode",
        timestamp=NOW,
        tags=("a",),
        provenance="cited",
        metadata={"n": 1, "deep": {"x": [1.5]}},
    )
    return codec.without_checksum(NUMBER, codec.encode_record(NUMBER, record), "record")


def _with_checksum(read: Read) -> Callable[[bytes], None]:
    """Read a value in three forms: unchanged, with a valid checksum, and with a valid checksum and the mark of
    uncompressed data.
    """

    def run(data: bytes) -> None:
        refused(read, data)
        refused(read, codec.with_checksum(NUMBER, data))
        refused(read, codec.with_checksum(NUMBER, b"\0" + data))

    return run


def _named(read: Callable[[bytes, bytes], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        number = codec.name_number(KEY)
        for value in (data, codec.with_checksum(number, data), codec.with_checksum(number, b"\0" + data)):
            refused(read, KEY, value)

    return run


def _journal_values(data: bytes) -> None:
    checked = xxhash.xxh3_64_digest(KEY + data) + data
    for value in (data, checked):
        for sealing in (Sealing(None), Sealing(_ring())):
            event, quarantined = entries.load_event(KEY, value), entries.load_quarantine(KEY, value)
            _ = event and _told_apart(sealing.open_event, event)
            _ = quarantined and _told_apart(sealing.open_quarantine, quarantined)
    entries.number(data)


def _told_apart(read: Callable[[bytes, Any], object], stored: object) -> None:
    """Check that damage yields None, a missing key raises our error, and nothing else is raised."""
    with suppress(EncryptionKeyMissingError):
        read(KEY, stored)


@cache
def _ring() -> KeyRing:
    ring = KeyRing(scratch() / "keys")
    ring.cipher("alice", "journal", create=True)
    return ring


def _sealed_event() -> bytes:
    plain = entries.StoredEvent(1, "alice", "e", "a.b", b"\x80")
    sealing = Sealing(_ring())
    return entries.pack(sealing.event(KEY, plain, sealing.id_key("alice", "e")))


def _sealed_quarantine() -> bytes:
    plain = entries.StoredQuarantine(b"d", "c", "r", "s", 1, None, b"x" * 16)
    return entries.pack(Sealing(_ring()).quarantine(KEY, "alice", plain))


def _arrays(data: bytes) -> None:
    """Read the input as a whole file, and as the index of a file with a matching checksum."""
    path = scratch() / "arrays-mutated"
    for file in (data, with_index(_array_file(), data)):
        path.write_bytes(file)
        refused(read_arrays, path, ColumnsHeader)


@cache
def _array_file() -> bytes:
    path = scratch() / "arrays"
    write_arrays(path, HEADER, ARRAYS)
    return path.read_bytes()


def index_of(file: bytes) -> bytes:
    """Return the index of a file of arrays."""
    end = len(file) - 16
    return file[end - int.from_bytes(file[end : end + 8], "little") : end]


def with_index(file: bytes, index: bytes) -> bytes:
    """Return the file with its index replaced."""
    kept = file[: len(file) - 16 - len(index_of(file))]
    told = index + len(index).to_bytes(8, "little")
    return kept + told + xxhash.xxh3_64_digest(kept[:64] + told)


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """Return a function that calls `read` on a file of this name that contains the input."""

    def run(data: bytes) -> None:
        folder = scratch() / f"folder-of-{name}"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        refused(read, folder)

    return run


def _sessions(folder: Path) -> None:
    sessions = Sessions(folder / "page-sessions", 7430, is_tls=False)
    sessions.token(BEGUN, 60.0)
    sessions.begin("laptop", "t", 60.0)


def _begun() -> tuple[Secrets, bytes]:
    """Return a session and the content of its file, without the checksum."""
    path = scratch() / "page-sessions"
    begun = Sessions(path, 7430, is_tls=False).begin("laptop", "t", 0.0)
    return begun, path.read_bytes().splitlines()[0]


def _pages(folder: Path) -> None:
    fault = pages.find_fault(folder)
    assert fault is None or len(fault) < 500


@cache
def _lmdb() -> bytes:
    folder = scratch() / "small"
    with Journal.open(folder, SETTINGS) as journal:
        mapping = msgspec.msgpack.decode(PACKED[0])
        journal.append([event_from_mapping({**mapping, "event_id": f"e{n}"}, LIMITS, NOW) for n in range(12)], NOW)
    return (folder / "data.mdb").read_bytes()


_CONTESTS = (None, Contest(1, 0), Comparison(1.5, 0.5))


@cache
def _learner() -> Learner:
    random = np.random.default_rng(3)
    vectors = random.standard_normal((12, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    lessons = (
        Lesson(n, vectors[n], (100 + n,), vectors[[n + 6]], (1.0,), n / 6, contest=_CONTESTS[n % 3]) for n in range(6)
    )
    return Learner.from_lessons(4, lessons, capacity=8)


class _StoreOfNow:
    """The part of a store that `load_learner` uses: its folder and state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = None
        self.state = codec.StoreState(lineage="l", stamp="s")


def _kept(folder: Path) -> None:
    learner.load_learner(_StoreOfNow(folder))  # type: ignore[arg-type]


def _kept_file() -> bytes:
    state = codec.StoreState(lineage="l", stamp="s")
    folder = scratch() / "kept"
    folder.mkdir(exist_ok=True)
    learner.save_learner(_StoreOfNow(folder), _learner(), learner.moment_in(state))  # type: ignore[arg-type]
    return (folder / "sona.state").read_bytes()


def _checkpoint(data: bytes) -> None:
    refused(checkpoint.from_bytes, data)
    refused(checkpoint.from_bytes, b"sona\0\1" + checkpoint._digest(data) + data)


def _learned(data: bytes) -> None:
    refused(runs_export.read_export, data)
    refused(runs_export.read_export, b"memory-agent runs 1\n" + runs_export._digest(data) + data)


def _parcel() -> bytes:
    return msgspec.msgpack.encode(runs_export.RunsExport({3: "m-3", 4: "m-4"}, [RUN], [NOTE]))


def _lines(data: bytes) -> None:
    for number, line in event_lines(BytesIO(data), "alice"):
        assert number <= data.count(b"\n") + 1
        assert isinstance(line, dict | BadLine)


def _memory_lines(data: bytes) -> None:
    refused(decode_head, data)
    refused(decode_line, 2, data, decode_head(LINES[1]))
    refused(decode_line, 2, data, ITEM_HEAD)


def _decode_vector(value: bytes) -> object:
    return codec.vectors_of([codec.vector_body(NUMBER, value, 4)], 4)


def _decode_passages(value: bytes) -> None:
    spans, further = codec.passages_of(codec.passages_body(NUMBER, value, 4), 4)
    assert len(spans) == len(further) + 1


def _decode_words(value: bytes) -> None:
    body = codec.words_body(NUMBER, value, 1)
    one, many = codec.words_of(body, 1), codec.words_of_rows([NUMBER], [body], 1)
    assert one.bits.tolist() == many.bits.tolist()
    assert len(one.bits) == many.counts.item()


_state = msgspec.msgpack.Decoder(codec.StoreState)
_usage = msgspec.msgpack.Decoder(codec.Usage)


def _decode_usage(value: bytes) -> Any:
    usage = codec.decode(_usage, NUMBER, codec.without_checksum(NUMBER, value, "usage"), "usage")
    return codec.decode_record(NUMBER, codec.with_checksum(NUMBER, _record()), usage)


BEGUN, SESSIONS_FILE = _begun()

TARGETS = (
    Target(
        "journal-values",
        _journal_values,
        (
            entries.dump_entry(KEY, entries.StoredEvent(1, "alice", "e", "a.b", b"\x80"))[8:],
            entries.dump_entry(KEY, entries.StoredQuarantine(b"d", "c", "r", "s", 1, None, b"x" * 16))[8:],
            _sealed_event(),
            _sealed_quarantine(),
            b"\xc1" + msgspec.msgpack.encode((1, "../alice", b"n", b"k" * 8, b"s" * 40)),
        ),
        "msgpack",
    ),
    Target("pages", _in_file("data.mdb", _pages), (_lmdb(),)),
    Target(
        "records",
        _with_checksum(lambda v: codec.decode_record(NUMBER, v, codec.Usage())),
        (
            _record(),
            msgspec.msgpack.encode(("m", "t", 0, 0, 1, None, None, None, None, None, 0.5, None, ("a",), 1, {"a": 1})),
        ),
        "msgpack",
    ),
    Target("vectors", _with_checksum(_decode_vector), (np.ones(4, "<f2").tobytes(),)),
    Target("passages", _with_checksum(_decode_passages), (PASSAGES,)),
    Target("words", _with_checksum(_decode_words), (WORDS,)),
    Target("usage", _with_checksum(_decode_usage), (msgspec.msgpack.encode(codec.Usage(1, 2, 3, 0.5)),), "msgpack"),
    Target(
        "change-log",
        _with_checksum(lambda v: codec.decode_entry(NUMBER, v)),
        (b"\0" + KEY, b"\3" + KEY + b"\0" + msgspec.msgpack.encode(("t", "x", ("a",)))),
    ),
    Target(
        "store-state",
        _with_checksum(lambda v: codec.decode(_state, NUMBER, codec.without_checksum(NUMBER, v, "state"), "state")),
        (msgspec.msgpack.encode(codec.StoreState()),),
        "msgpack",
    ),
    Target("trajectories", _named(stored_runs.decode_trajectory), (msgspec.msgpack.encode(RUN),), "msgpack"),
    Target("recall-notes", _named(stored_runs.decode_note), (msgspec.msgpack.encode(NOTE),), "msgpack"),
    Target("array-file", _arrays, (_array_file(), index_of(_array_file())), "msgpack"),
    Target("checkpoint", _checkpoint, (checkpoint.to_bytes(_learner())[22:],), "msgpack"),
    Target("kept-learner", _in_file("sona.state", _kept), (_kept_file(),), "msgpack"),
    Target("sona-import", _learned, (_parcel(),), "msgpack"),
    Target("key-file", _in_file("keys.json", key_file.read_keys), KEYS, "json"),
    Target("own-key-file", _in_file("mine.json", lambda folder: read_key_file(folder / "mine.json")), KEYS, "json"),
    Target(
        "server-pair",
        _in_file("curve.json", lambda folder: key_file.server_pair(folder, lambda: CurvePair("p", "s"))),
        KEYS,
        "json",
    ),
    Target("page-sessions", _in_file("page-sessions", _sessions), (SESSIONS_FILE,), "json"),
    Target("sign-in", lambda data: refused(decode_body, data, SignIn), (b'{"token": "t"}',), "json"),
    Target("token-file", _in_file("token", key_file._local_token), (b"abc\n",)),
    Target("backup-manifest", _in_file("manifest.json", read_manifest), MANIFEST, "json"),
    Target("erasure-begun", _in_file(INTENT_FILE, read_intent), INTENTS, "json"),
    Target("erasure-history", _in_file("erasures.jsonl", lambda folder: read_history(folder, "a")), HISTORIES, "json"),
    Target("retention-note", _in_file(retention.RETENTION_FILE, retention._read_note), NOTES, "json"),
    Target("memory-lines", _memory_lines, LINES + ITEM_LINES, "json"),
    Target("settings", _in_file("s.toml", lambda folder: load_settings(folder / "s.toml", {})), SETTINGS_FILES),
    Target("relay-settings", _in_file("r.toml", lambda folder: load_relay_settings(folder / "r.toml")), SETTINGS_FILES),
    Target("signals", _in_file("own.toml", lambda folder: SignalTable.load(str(folder / "own.toml"))), SIGNALS),
    Target(
        "event-lines",
        _lines,
        (PACKED[0], b'{"event_type": "a.b"}\n\n{"user_id": "x"}\r\n', b"\xef\xbb\xbf{}\n"),
        "bytes",
    ),
)
