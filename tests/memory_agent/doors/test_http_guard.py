"""Test the addresses that the HTTP server may listen on, its certificate, and its checks of Host and Origin."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import ipaddress
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from http_caller import HttpCaller
from served_gateway import gateway_in_new_folder
from structlog.testing import capture_logs

from memory_agent.daemon.process import serve
from memory_agent.doors.http.guard import place_of, refuse_names
from memory_agent.doors.http.server import HttpDoor
from memory_agent.errors import SettingsError
from memory_agent.layout import Layout
from memory_agent.settings import DaemonSettings, HttpSettings, Settings
from relay import Endpoints, EventLimits


def certificate(folder: Path) -> tuple[str, str]:
    """Create a self-signed certificate for 127.0.0.1; return its file and its key file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "memory")])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "memory.pem", folder / "memory.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(pem), str(private)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "10.0.0.7:80", "memory.example:443", "[::]:0", "127.0.0.1.evil:1"])
def test_http_beyond_loopback_needs_a_certificate(listen: str, tmp_path: Path) -> None:
    http = HttpSettings(listen=listen)
    with pytest.raises(SettingsError, match=r"is not loopback .*daemon\.http\.certificate"):
        serve(Settings(daemon=DaemonSettings(http=http)), tmp_path / "data")
    assert not (tmp_path / "data").exists()  # refused before anything starts
    pem, private = certificate(tmp_path)
    place = place_of(HttpSettings(listen=listen, certificate=pem, private_key=private))
    assert place is not None
    assert (place.is_loopback, place.is_tls) == (False, True)


@pytest.mark.parametrize("listen", ["127.0.0.1", "here", ":80", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1"])
def test_an_invalid_address_is_refused_by_name(listen: str) -> None:
    with pytest.raises(SettingsError, match=r"daemon\.http\.listen: must be HOST:PORT"):
        place_of(HttpSettings(listen=listen))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:7", "[::1]:0", "localhost:80"])
def test_loopback_needs_none(listen: str) -> None:
    place = place_of(HttpSettings(listen=listen))
    assert place is not None
    assert place.is_loopback


def test_http_can_be_disabled() -> None:
    assert place_of(HttpSettings(listen="")) is None


def test_a_certificate_and_its_key_belong_together(tmp_path: Path) -> None:
    pem, private = certificate(tmp_path)
    for settings, named in (
        ({"certificate": pem}, "private_key: is missing"),
        ({"private_key": private}, "certificate: is missing"),
        ({"certificate": str(tmp_path / "none"), "private_key": private}, "certificate: .* is not a file"),
    ):
        with pytest.raises(SettingsError, match=named):
            place_of(HttpSettings(**settings))


def test_an_invalid_certificate_and_a_port_in_use_are_named(tmp_path: Path) -> None:
    _, private = certificate(tmp_path)
    wrong = HttpSettings(certificate=private, private_key=private)
    layout = Layout(tmp_path / "data")
    layout.create()

    def door(settings: HttpSettings) -> HttpDoor:
        place = place_of(settings)
        assert place is not None
        return HttpDoor(settings, place, layout)

    with pytest.raises(SettingsError, match=r"daemon\.http\.certificate: cannot be used"):
        door(wrong)
    first = door(HttpSettings())
    taken = urlsplit(first.url).netloc
    with pytest.raises(SettingsError, match=r"daemon\.http\.listen: 127\.0\.0\.1:\d+: .*in use"):
        door(HttpSettings(listen=taken))
    first.close()


def test_a_port_in_use_is_reported_before_anything_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match=rf"daemon\.http\.listen: {listen}: .*in use"):
            serve(Settings(daemon=DaemonSettings(http=HttpSettings(listen=listen))), tmp_path)
    assert not (tmp_path / "journal").exists()  # the relay has not started
    assert capfd.readouterr() == ("", "")


def test_a_server_takes_its_former_port_if_it_is_free(tmp_path: Path) -> None:
    place = place_of(HttpSettings())
    assert place is not None
    layout = Layout(tmp_path)
    layout.create()

    def bound() -> HttpDoor:
        return HttpDoor(HttpSettings(), place, layout)

    first = bound()
    second = bound()  # the first server's port is in use
    assert second.url != first.url
    first.close()
    second.close()
    third = bound()
    assert third.url == second.url
    third.close()
    for unusable in ("", "no port", "99999", "-1"):
        layout.http_port.write_text(unusable)
        door = bound()
        assert layout.http_port.read_text() == f"{urlsplit(door.url).port}\n"
        door.close()


def test_a_server_whose_port_cannot_be_saved_serves(tmp_path: Path) -> None:
    place = place_of(HttpSettings())
    assert place is not None
    layout = Layout(tmp_path)
    layout.create()
    layout.http_port.mkdir()
    with capture_logs() as logs:
        HttpDoor(HttpSettings(), place, layout).close()
    assert [line["event"] for line in logs] == ["http.port_not_saved"]


def test_over_tls_a_client_that_trusts_the_certificate_is_served(tmp_path: Path) -> None:
    pem, private = certificate(tmp_path)
    settings = HttpSettings(certificate=pem, private_key=private)
    with gateway_in_new_folder(settings=Settings(daemon=DaemonSettings(http=settings))) as served:
        assert served.http.startswith("https://127.0.0.1:")
        token = served.token
        trusting = http.client.HTTPSConnection(
            urlsplit(served.http).netloc, context=ssl.create_default_context(cafile=pem)
        )
        trusting.request("POST", "/v1/stats", headers={"Authorization": f"Bearer {token}", "Host": "memory.example"})
        assert trusting.getresponse().read().startswith(b'{"user_id":"default"')
        trusting.close()
        plain = HttpCaller(served.http, token)
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.post("stats")
        plain.close()


def test_with_tls_host_names_are_checked_if_the_settings_have_some(tmp_path: Path) -> None:
    pem, private = certificate(tmp_path)
    place = place_of(HttpSettings(listen="0.0.0.0:0", certificate=pem, private_key=private))
    assert place is not None
    assert refuse_names(place, (), "memory.example", None) is None
    assert refuse_names(place, ("Memory.Example",), "memory.example", None) is None
    assert refuse_names(place, ("memory.example",), "memory.example:443", "https://memory.example:443") is None
    for named, host, origin, status in (
        (("memory.example",), "evil.example", None, 421),
        ((), "memory.example", "http://[::1", 403),
        ((), "memory.example", "https://evil.example", 403),
        ((), "memory.example", "null", 403),
    ):
        refusal = refuse_names(place, named, host, origin)
        assert refusal is not None
        assert refusal[0] == status


def test_a_cancelled_server_drops_its_connections_and_its_port(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = HttpSettings()
        place = place_of(settings)
        assert place is not None
        layout = Layout(tmp_path)
        layout.create()
        door = HttpDoor(settings, place, layout)
        nowhere = Endpoints("ipc:///none", "ipc:///none")
        running = asyncio.create_task(door.run(None, nowhere, EventLimits(), 1))  # type: ignore[arg-type]  # nothing is asked
        where = urlsplit(door.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(where.hostname, where.port)

    asyncio.run(scenario())
