"""Test the certificates of a cluster with real TLS connections."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from pathlib import Path

import pytest

from memory_agent.daemon.cluster_secrets import ClusterSecrets, ray_environment
from memory_agent.errors import SettingsError
from memory_agent.settings import ClusterSettings, Settings, load_settings
from memory_agent.verbs.protocol import Certificate


def connected(server: Certificate, client: Certificate, tmp_path: Path, name: str = "127.0.0.1") -> str:
    """Connect with mutual TLS; return what the server sent."""
    of_server, of_client = (tmp_path / side for side in ("server", "client"))
    for folder, certificate in ((of_server, server), (of_client, client)):
        folder.mkdir()
        ray_environment(folder, certificate)
    listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=of_server / "ca.pem")
    listening.verify_mode = ssl.CERT_REQUIRED
    listening.load_cert_chain(of_server / "ray.pem", of_server / "ray-key.pem")
    asking = ssl.create_default_context(cafile=of_client / "ca.pem")
    asking.load_cert_chain(of_client / "ray.pem", of_client / "ray-key.pem")
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            with listening.wrap_socket(there, server_side=True) as peer:
                peer.sendall(b"welcome")
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asking.wrap_socket(here, server_hostname=name) as peer:
            return peer.recv(100).decode()
    finally:
        here.close()
        thread.join()


def test_machines_of_a_cluster_trust_each_other_at_their_addresses(tmp_path: Path) -> None:
    secrets = ClusterSecrets(tmp_path / "cluster")
    one, other = secrets.certificate_for("10.0.0.1"), secrets.certificate_for("10.0.0.2")
    assert connected(one, other, tmp_path, "10.0.0.1") == "welcome"


@pytest.mark.parametrize("foreign", ["server", "client"])
def test_a_machine_of_another_cluster_is_refused(tmp_path: Path, foreign: str) -> None:
    own, other = (ClusterSecrets(tmp_path / name).certificate_for("127.0.0.1") for name in ("own", "other"))
    server, client = (other, own) if foreign == "server" else (own, other)
    with pytest.raises(OSError):
        connected(server, client, tmp_path)


def test_a_certificate_is_valid_for_its_address_alone(tmp_path: Path) -> None:
    secrets = ClusterSecrets(tmp_path / "cluster")
    one, other = secrets.certificate_for("10.0.0.1"), secrets.certificate_for("10.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(one, other, tmp_path, "10.0.0.2")


def test_the_secrets_survive_a_restart_and_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    first, second = ClusterSecrets(folder), ClusterSecrets(folder)
    assert first.curve == second.curve
    assert first.certificate_for("10.0.0.1").authority == second.certificate_for("10.0.0.1").authority
    assert folder.stat().st_mode & 0o777 == 0o700
    ray_environment(folder, first.certificate_for("10.0.0.1"))
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_a_damaged_authority_is_reported(tmp_path: Path) -> None:
    ClusterSecrets(tmp_path)
    (tmp_path / "authority.pem").write_text("noise")
    with pytest.raises(SettingsError, match="is damaged"):
        ClusterSecrets(tmp_path)


def test_without_cryptography_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SettingsError, match="pip install"):
        ClusterSecrets(tmp_path)


def test_there_is_no_cluster_by_default() -> None:
    assert Settings().cluster == ClusterSettings(listen="") == load_settings(environment={}).cluster
