"""Authentication of a connection: before the first message, each end proves that it knows the server's token.

    client -> server   nonce (32 bytes) + HMAC-SHA256(token, "client" + nonce)
    server -> client   HMAC-SHA256(token, "server" + nonce)

The token itself is never sent. Until a client is authenticated, the server reads these 64 bytes only, parses
nothing, and sends nothing. The whole exchange, with the TLS handshake if there is one, has one deadline.
"""

from __future__ import annotations

import hmac
import secrets
import time

from strop.workers.connection import ConnectionLost, SocketConnection

HANDSHAKE_SECONDS = 10.0
"""Timeout of the whole handshake."""
_NONCE_BYTES = 32
_PROOF_BYTES = 32


def authenticate_server(connection: SocketConnection, token: str) -> None:
    """The client's part. Raises `ConnectionLost` if the peer does not know the token, or exceeds the timeout."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.write(nonce + _proof(token, b"client", nonce), deadline)
    if not hmac.compare_digest(connection.read(_PROOF_BYTES, deadline), _proof(token, b"server", nonce)):
        raise ConnectionLost


def authenticate_client(connection: SocketConnection, token: str) -> None:
    """The server's part. Raises `ConnectionLost` if the peer does not know the token, or exceeds the timeout."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    opening = connection.read(_NONCE_BYTES + _PROOF_BYTES, deadline)
    nonce, proof = opening[:_NONCE_BYTES], opening[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"client", nonce)):
        raise ConnectionLost
    connection.write(_proof(token, b"server", nonce), deadline)


def _proof(token: str, sender: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), sender + nonce, "sha256")
