"""Test `memory-agent open`: the address, the browser, and the errors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from click.testing import CliRunner, Result
from http_caller import Answer, HttpCaller
from served_gateway import Served, found_by_clients, gateway_in_new_folder

from memory_agent.cli.group import cli
from relay import Scope, create_key


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with gateway_in_new_folder() as served, found_by_clients(served):
        yield served


@pytest.fixture(autouse=True)
def _no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)


def opened(*words: object) -> Result:
    return CliRunner().invoke(cli, ["open", *map(str, words)])


def failure(*words: object) -> dict[str, Any]:
    result = opened(*words, "--no-start", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    error: dict[str, Any] = json.loads(result.stderr)["error"]
    return error


def sign_in(address: str) -> Answer:
    """Sign in as the page does when it is opened at this address."""
    place = urlsplit(address)
    assert place.path == "/page/"
    with closing(HttpCaller(address)) as caller:
        body = msgspec.json.encode({"token": parse_qs(place.fragment)["token"][0]})
        return caller.send("POST", "/page/session", body)


def test_without_a_browser_the_address_is_printed_and_signs_in_once(served: Served) -> None:
    result = opened("--data-dir", served.data_dir)
    assert result.exit_code == 0
    address = result.stdout.strip()
    assert address.startswith(f"{served.http}/page/#token=")
    assert served.token not in address
    assert result.stderr == "note: the address works once, within a minute\n"
    assert sign_in(address).json()["user_id"] is None
    assert sign_in(address).code == "unauthorized"


def test_the_address_names_the_user_and_has_the_rights_of_the_key(served: Served, tmp_path: Path) -> None:
    key = tmp_path / "reader.key"
    key.write_bytes(msgspec.json.encode(create_key(served.data_dir, "reader", "ann+b", frozenset({Scope.RECALL}))))
    words = ("--data-dir", served.data_dir, "--key-file", key, "--user", "ann+b", "--print", "--json")
    said = json.loads(opened(*words).stdout)
    assert parse_qs(urlsplit(said["address"]).fragment)["user"] == ["ann+b"]
    assert said["opened"] is False
    signed_in = sign_in(said["address"]).json()
    assert (signed_in["user_id"], signed_in["scopes"]) == ("ann+b", ["recall"])
    error = failure("--data-dir", served.data_dir, "--key-file", key, "--user", "bob")
    assert (error["code"], error["message"]) == ("user_not_allowed", "the key is for the user ann+b, not bob")


def test_the_browser_gets_the_address_and_the_terminal_no_ticket(served: Served, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/address\n')
    browser.chmod(0o700)
    command = [sys.executable, "-m", "memory_agent", "open", "--data-dir", str(served.data_dir)]
    environment = os.environ | {"BROWSER": f"{browser} %s"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == (f"opened {served.http}/page/ in the browser\n", "")
    assert sign_in((tmp_path / "address").read_text()).status == 200


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    error = failure("--data-dir", tmp_path / "none")
    assert error["code"] == "unavailable"
    assert f"start one with: memory-agent serve --data-dir {tmp_path}/none" in error["message"]
    assert not (tmp_path / "none").exists()


def test_a_name_that_no_user_can_have_is_refused(tmp_path: Path) -> None:
    result = opened("--data-dir", tmp_path / "none", "--user", "a b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: user_id: 'a b' is unsafe: ASCII letters, digits")
    assert not (tmp_path / "none").exists()


def test_a_wrong_token_is_refused_and_not_shown(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", "wrong-token")
    error = failure("--data-dir", served.data_dir)
    assert (error["code"], error["retryable"]) == ("unauthorized", False)
    assert "wrong-token" not in error["message"]


def test_an_address_without_a_daemon_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    error = failure("--url", url)
    assert (error["code"], error["retryable"]) == ("unavailable", True)
    assert f"the daemon at {url} does not respond: " in error["message"]


def test_the_url_may_end_with_a_slash_and_has_no_path(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_AGENT_TOKEN", served.token)
    assert opened("--url", f"{served.http}/", "--print").stdout.startswith(f"{served.http}/page/#token=")
    netloc = urlsplit(served.http).netloc
    for url in (
        f"{served.http}/page",
        f"{served.http}?",
        f"http://a:b@{netloc}",
        netloc,
        "ftp://here",
        "http://here:x",
    ):
        result = opened("--url", url)
        assert result.exit_code == 2
        assert "--url must be http(s)://HOST:PORT" in result.stderr


def test_the_address_of_another_server_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def respond() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n<p>hello")

        thread = threading.Thread(target=respond)
        thread.start()
        error = failure("--url", f"http://127.0.0.1:{other.getsockname()[1]}")
        thread.join()
    assert error["code"] == "unavailable"
    assert "is not the address of a daemon with a page: HTTP/1.0 200 OK" in error["message"]
