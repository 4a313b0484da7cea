"""Test that only compatible machines are accepted, and that changed messages require a new protocol number.

If a structure changed without a new protocol number, incompatible machines could join.
"""

from __future__ import annotations

import inspect
import json
from hashlib import sha256
from typing import Any, get_args

import msgspec
import pytest

from memory_agent.daemon.compatibility import decode_settings, encode_settings, in_common, require_compatible
from memory_agent.daemon.host_actor import HostActor
from memory_agent.errors import NodeMismatchError, SettingsError
from memory_agent.learning import pattern_store, shared_use
from memory_agent.records.shared_requests import AnySharedRequest, Caller
from memory_agent.settings import (
    ArchiveSettings,
    EmbedderSettings,
    IngestSettings,
    OllamaEmbedder,
    RetentionRule,
    RetentionSettings,
    Settings,
)
from memory_agent.storage import codec, stored_runs
from memory_agent.verbs.params import JoinParams, LeaveParams
from memory_agent.verbs.protocol import (
    HOST_PROTOCOL,
    Fault,
    HostEndpoints,
    HostFigures,
    HostRequest,
    IngestBatch,
    JoinGrant,
    Reply,
)
from memory_agent.verbs.table import VERBS
from memory_agent.version import VERSION
from relay import EncryptionSettings, Event

DIGESTS = {1: "2725a3f9986b73b2"}
"""The digest of all structures, by `HOST_PROTOCOL`. A digest may change only if its number was never released."""
STORED = (
    codec.StoreState,
    codec.Usage,
    codec._StoredRecord,
    stored_runs.StoredTrajectory,
    stored_runs.RecallNote,
    pattern_store._StoredPatterns,
    shared_use.Outbox,
)
"""Values in records that a host reads and writes back. A version with fewer fields would drop the rest."""
MODEL = "minilm|1"


def structures() -> dict[str, Any]:
    """Return a description of all messages between a daemon and hosts of another version."""
    types: list[Any] = [
        HostRequest,
        IngestBatch,
        Fault,
        HostEndpoints,
        HostFigures,
        JoinParams,
        JoinGrant,
        LeaveParams,
        Event,
        Caller,
    ]
    requests = get_args(AnySharedRequest)
    types += [*requests, *(get_args(request.__orig_bases__[0])[0] for request in requests), *STORED]
    types += [one for verb in VERBS if verb.answered_by.startswith("memory") for one in (verb.params, verb.result)]
    _, components = msgspec.json.schema_components(types)
    calls = {name: value.__annotations__ for name, value in vars(HostActor).items() if inspect.isfunction(value)}
    return {"structs": _without_texts(components), "reply": Reply.__annotations__, "calls": calls}


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        texts = {name for name in ("description", "title") if isinstance(schema.get(name), str)}  # not fields
        return {name: _without_texts(value) for name, value in schema.items() if name not in texts}
    return [_without_texts(one) for one in schema] if isinstance(schema, list) else schema


def test_message_structures_change_only_with_the_protocol_number() -> None:
    found = sha256(json.dumps(structures(), sort_keys=True).encode()).hexdigest()[:16]
    advice = f"the structures changed: raise HOST_PROTOCOL, and add the digest {found} for the new number"
    assert {**DIGESTS, HOST_PROTOCOL: found} == DIGESTS, advice
    assert max(DIGESTS) == HOST_PROTOCOL


def joining(version: str = VERSION, **differing: int | str) -> JoinParams:
    common = in_common() | differing
    return JoinParams(name="w", address="10.0.0.2", cores=1, version=version, model=MODEL, in_common=common)


def test_machines_of_different_versions_are_compatible_if_protocol_and_formats_are_equal() -> None:
    require_compatible(joining("0.0.1"), MODEL)
    require_compatible(joining("99.0.0", news=7), MODEL)


@pytest.mark.parametrize(
    ("differing", "says"),
    [
        ({"protocol": HOST_PROTOCOL - 1}, f"upgrade this machine from version 0.9 to {VERSION}"),
        ({"protocol": HOST_PROTOCOL + 1}, f"upgrade the daemon from version {VERSION} to 0.9 first"),
        ({"record format": codec.FORMAT + 1}, f"record format of this machine is {codec.FORMAT + 1}"),
        ({"archive format": 0}, "archive format of this machine is 0"),
        ({"Ray": "2.9.1"}, "the Ray of this machine is 2.9.1"),
        ({"Python": "3.11.0"}, "the Python of this machine is 3.11.0"),
    ],
)
def test_a_machine_that_differs_is_refused_with_advice(differing: dict[str, int | str], says: str) -> None:
    with pytest.raises(NodeMismatchError, match=says):
        require_compatible(joining("0.9", **differing), MODEL)


def test_a_machine_that_sends_no_versions_counts_as_older() -> None:
    silent = msgspec.structs.replace(joining("0.1.0"), in_common={})
    with pytest.raises(NodeMismatchError, match=r"upgrade this machine from version 0\.1\.0"):
        require_compatible(silent, MODEL)


def test_settings_survive_encoding_and_defaults_are_omitted() -> None:
    rules = (RetentionRule(name="old", age_s=5.0), RetentionRule(name="kept"))
    settings = Settings(
        archive=ArchiveSettings(url="s3://bucket", options={"key": "k"}),
        ingest=IngestSettings(min_text_chars=9),
        retention=RetentionSettings(rules=rules),
        encryption=EncryptionSettings(keys_folder="/keys"),
        embedder=EmbedderSettings(folder="/model"),
        former_embedder=OllamaEmbedder(model="nomic-embed-text"),
    )
    assert decode_settings(encode_settings(settings)) == settings
    named = {"archive", "ingest", "retention", "encryption", "embedder", "former_embedder"}
    assert msgspec.msgpack.decode(encode_settings(settings)).keys() == named
    assert decode_settings(encode_settings(Settings())) == Settings()


def test_a_setting_that_only_the_daemons_version_has_is_named() -> None:
    encoded = msgspec.msgpack.encode({"recall": {"next_years": 1}})
    with pytest.raises(SettingsError, match=r"recall\.next_years.*upgrade this machine, or unset it"):
        decode_settings(encoded)
