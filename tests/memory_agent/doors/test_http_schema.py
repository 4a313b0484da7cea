"""Test the OpenAPI description, including with a fuzzer (schemathesis) that derives requests from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from http_caller import HttpCaller
from served_gateway import Served, gateway_in_new_folder

from memory_agent.doors.bodies import PUBLIC
from memory_agent.embedders import Embedder
from relay import BrokerSettings, RelaySettings

HERE = Path(__file__).parents[1]
SOON = RelaySettings(broker=BrokerSettings(upkeep_interval_s=0.1))  # an erasure waits for the upkeep


@pytest.fixture(scope="module")
def served(embedder: Embedder) -> Iterator[Served]:
    with gateway_in_new_folder(embedder, SOON) as served:
        yield served


@pytest.fixture(scope="module")
def described(served: Served) -> dict[str, Any]:
    caller = HttpCaller(served.http)
    found: dict[str, Any] = caller.send("GET", "/openapi.json").json()
    caller.close()
    return found


def test_every_verb_is_described(described: dict[str, Any]) -> None:
    paths = {path.removeprefix("/v1/") for path in described["paths"]}
    assert paths == {verb.name for verb in PUBLIC} | {"blocks", "events", "/metrics"}
    for verb in PUBLIC:
        operation = described["paths"][f"/v1/{verb.name}"]["post"]
        assert operation["summary"] == verb.summary
        assert f"scope {verb.scope}" in operation["description"]


def test_fields_that_the_server_fills_in_are_not_required(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    assert not {"usual_deadline", "reference_offset_s"} & schemas["RecallRequest"]["properties"].keys()
    assert schemas["RecallRequest"]["required"] == ["query"]
    assert schemas["RunBeginRequest"]["required"] == ["objective"]
    assert all("user_id" in schema["properties"] for name, schema in schemas.items() if name.endswith("Request"))


def test_the_schemas_are_json_schema_and_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    text = json.dumps(described)
    for name, schema in described["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert f"#/components/schemas/{name}" in text, name
    for part in text.split('"$ref": "#/')[1:]:
        place: Any = described
        for name in part.partition('"')[0].split("/"):
            place = place[name]


@pytest.mark.slow
def test_no_generated_request_ends_in_a_server_error_or_breaks_the_description(served: Served) -> None:
    token = served.token
    command = [
        str(Path(sys.executable).with_name("st")),
        "--config-file",
        str(HERE / "schemathesis.toml"),
        "--no-color",
    ]
    command += ["run", f"{served.http}/openapi.json", "--header", f"Authorization: Bearer {token}"]
    command += ["--exclude-operation-id", "follow_blocks", "--exclude-operation-id", "follow_events"]  # endless streams
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(HERE), "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
    assert f"Tested: {len(PUBLIC) + 2}" in found.stdout, found.stdout[-3000:]
