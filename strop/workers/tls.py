"""TLS between processes of one run: each server has its own self-signed certificate, which its clients pin.

The certificate is part of the server's address file, so that nothing else has to be distributed. The private
key never leaves the server's process, except for a temporary file while OpenSSL reads it.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from strop.errors import MissingExtraError

_VALIDITY = timedelta(days=3650)
_CLOCK_SKEW = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's certificate, and the TLS context that proves it."""

    certificate: str
    """PEM text."""
    context: ssl.SSLContext

    @classmethod
    def create(cls) -> ServerIdentity:
        """A new key and certificate. Raises `MissingExtraError` without the package `cryptography`."""
        certificate, key = _self_signed_certificate()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.TemporaryDirectory(prefix="strop-tls-") as folder:  # readable by this user only
            path = Path(folder) / "server.pem"
            path.write_bytes(key + certificate)
            context.load_cert_chain(path)
        return cls(certificate.decode(), context)


def client_context(certificate: str) -> ssl.SSLContext:
    """A TLS context that accepts the server with this certificate, at any address, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


def _self_signed_certificate() -> tuple[bytes, bytes]:
    """A certificate and its private key, both in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingExtraError(
            "On a Ray cluster of several nodes the run's processes communicate by TLS, which needs the "
            "package cryptography. Install it on every node: pip install 'strop[ray]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "strop")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
