"""The secrets of a daemon's cluster: a certificate authority for Ray's traffic, and a CURVE key pair for the hosts.

They are stored in DATA/cluster/ (0700). A joining machine receives, over CURVE, its own certificate and the key pair.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from memory_agent.errors import SettingsError
from memory_agent.verbs.protocol import Certificate
from relay import CurvePair, curve_pair, server_pair
from relay.disk import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_VALID = timedelta(days=3650)
_EARLIER = timedelta(days=1)  # for clocks that are behind
_LOOPBACK = "127.0.0.1"  # Ray's processes on one machine may also connect through it
_FILES = {
    "RAY_TLS_CA_CERT": "ca.pem",
    "RAY_TLS_SERVER_CERT": "ray.pem",
    "RAY_TLS_SERVER_KEY": "ray-key.pem",
}
_MISSING = "needs certificates, but `cryptography` is not installed: pip install cryptography"


class ClusterSecrets:
    def __init__(self, folder: Path) -> None:
        """Create the secrets if they are missing. Raises `SettingsError`, `KeyFileError` and `OSError`."""
        _require_cryptography()
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.curve: CurvePair = server_pair(folder, curve_pair)
        self._authority, self._key = self._open_authority()

    def certificate_for(self, address: str) -> Certificate:
        from cryptography import x509

        key = _new_key()
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(one)) for one in (address, _LOOPBACK)])
        signed = _builder(address, key).issuer_name(self._authority.subject).add_extension(names, critical=False)
        return Certificate(
            authority=_pem(self._authority), certificate=_pem(_sign(signed, self._key)), private_key=_key_pem(key)
        )

    def _open_authority(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        path = self._folder / "authority.pem"  # key and certificate in one file, so that they always match
        if not path.exists():
            key = _new_key()
            made = _builder("memory-agent", key)
            made = made.issuer_name(made._subject_name)  # type: ignore[arg-type]
            made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            write_private(path, (_key_pem(key) + _pem(_sign(made, key))).encode())
        try:
            stored = path.read_bytes()
            private = load_pem_private_key(stored, None)
            assert isinstance(private, EllipticCurvePrivateKey)
            return x509.load_pem_x509_certificate(stored), private
        except ValueError as error:
            raise SettingsError("cluster.listen", f"{path} is damaged; remove it to create a new one") from error


def ray_environment(folder: Path, certificate: Certificate) -> dict[str, str]:
    """Write the certificate into `folder` and return the variables for Ray, which reads them when it is imported.

    A machine that does not answer for three seconds is considered dead. Ray waits a little longer for the gcs, because
    the daemon restarts the gcs if it dies.
    """
    texts = (certificate.authority, certificate.certificate, certificate.private_key)
    for name, text in zip(_FILES.values(), texts, strict=True):
        write_private(folder / name, text.encode())
    return {
        **tls_environment(folder),
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    }


def tls_environment(folder: Path) -> dict[str, str]:
    return {"RAY_USE_TLS": "1", **{variable: str(folder / name) for variable, name in _FILES.items()}}


def require_address(setting: str, address: str) -> None:
    """Raise `SettingsError` unless `address` is the IP address of one machine, such as 10.0.0.5."""
    if not is_address(address):
        raise SettingsError(setting, f"{address!r} is not the IP address of one machine, such as 10.0.0.5")


def is_address(address: str) -> bool:
    """Whether this is the IP address of one machine.

    >>> is_address("10.0.0.5"), is_address("0.0.0.0"), is_address("worker.example")
    (True, False, False)
    """
    try:
        return not ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise SettingsError("cluster.listen", _MISSING) from error


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _builder(name: str, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(not_valid_before=now - _EARLIER, not_valid_after=now + _VALID)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    return builder.subject_name(subject).public_key(key.public_key()).serial_number(x509.random_serial_number())


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
