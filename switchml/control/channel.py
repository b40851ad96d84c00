"""Common settings of both ends of a control connection: liveness by HTTP/2 pings, addresses, TLS files; and the agent's
channel, with the interpretation of its errors.

A peer whose process dies closes its socket, which is detected at once. A peer that is cut off or suspended (SIGSTOP)
sends nothing: both ends therefore ping an idle connection, and gRPC closes it when no answer comes. gRPC's own threads
answer pings (from grpcio 1.73 on without the interpreter lock), so a Python program that computes for minutes still
counts as alive.
"""

import os
import re
import ssl
from contextlib import suppress
from pathlib import Path

import grpc

from switchml.errors import ConfigError
from switchml.files import read_bytes

CONTROL_PORT = 50099
"""Port of p4app-switchML's controller, which v1 hosts expect."""
PEER_TIMEOUT_S = 10.0
MIN_PEER_TIMEOUT_S = 2.0
"""gRPC clients send at most one ping per second, so a shorter silence is no sign of failure."""

_SHOWN = 80
"""Maximum characters of an invalid address in a message."""
_HANDSHAKE_TURNS = 4
_DATE_PROBLEMS = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED (openssl/x509_vfy.h)."""


def keepalive_options(peer_timeout_s: float) -> list[tuple[str, int]]:
    """gRPC channel or server options that close a connection whose peer is silent, at most `peer_timeout_s` after its
    last sign of life.
    """
    if not MIN_PEER_TIMEOUT_S <= peer_timeout_s <= 86400:
        raise ConfigError(f"peer timeout of {peer_timeout_s:g} s: expected {MIN_PEER_TIMEOUT_S:g} to 86400")
    period_ms = int(peer_timeout_s * 1000)
    return [
        # Worst case: the peer dies just after answering a ping. The next ping is sent a third of the time later, and
        # its answer awaited for half of the time, which leaves a sixth for local delays.
        ("grpc.keepalive_time_ms", max(period_ms // 3, 1)),
        ("grpc.keepalive_timeout_ms", max(period_ms // 2, 1)),
        # Newer gRPC cores have a second limit, on any ping, and ignore the others if this one is longer.
        ("grpc.http2.ping_timeout_ms", max(period_ms // 2, 1)),
        ("grpc.keepalive_permit_without_calls", 1),
        # By default a sender stops pinging a stream without data after two pings, and a server answers more of them
        # with GOAWAY "too_many_pings". A job's stream is silent for hours.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_time_between_pings_ms", max(period_ms // 6, 1)),
        ("grpc.http2.min_ping_interval_without_data_ms", 1),
    ]


def split_address(text: str) -> tuple[str, int]:
    """Parse `host:port` to (host, port). Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not _is_host(host) or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise ConfigError(f"address {shown!r}: expected HOST:PORT, for example 127.0.0.1:{CONTROL_PORT}")
    return host, int(port)


def _is_host(text: str) -> bool:
    """Whether `text` can be the name or address of a host: for others the resolver raises ValueError."""
    try:
        return bool(text.encode("idna")) and text.isprintable() and " " not in text
    except UnicodeError:
        return False


def read_pem(path: str | Path, what: str) -> bytes:
    """Read a PEM file. Raises ConfigError with the file and the cause."""
    try:
        data = read_bytes(path)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    if b"-----BEGIN " not in data:
        raise ConfigError(f"{what} {path}: not a PEM file (it has no BEGIN line)")
    return data


def read_ca(path: str | Path) -> bytes:
    """Read certificates trusted by a client. Raises ConfigError if they can't be used."""
    data = read_pem(path, "TLS CA file")
    try:
        ssl.create_default_context(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ConfigError(f"TLS CA file {path}: holds no usable certificate ({why})") from error
    return data


def read_key_pair(certificate: str | Path, key: str | Path) -> tuple[bytes, bytes]:
    """Read (private key, certificate chain) of a server. Raises ConfigError unless the two match."""
    chain, private = read_pem(certificate, "TLS certificate"), read_pem(key, "TLS key")
    try:
        # gRPC only reports that binding failed; OpenSSL reports why.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"TLS certificate {certificate} with key {key}: {getattr(error, 'reason', None) or error}"
        ) from error
    return private, chain


def date_problem(certificate: str | Path, key: str | Path) -> str:
    """Problem with the dates of a server's certificate that clients will report, in OpenSSL's words ("certificate has
    expired"); "" if none. Determined by a handshake in memory, with a client that trusts this very certificate.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key, password="")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        for end in ends * _HANDSHAKE_TURNS:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message if error.verify_code in _DATE_PROBLEMS else ""
    except ssl.SSLError:
        pass  # not a problem of dates
    return ""


def open_channel(target: str, peer_timeout_s: float, tls_ca: str | Path | None) -> grpc.Channel:
    """Open a channel to the aggregator at `target`. `tls_ca`: a PEM file (default: SWITCHML_TLS_CA), which
    enables TLS."""
    options = [
        *keepalive_options(peer_timeout_s),
        ("grpc.enable_retries", 0),
        ("grpc.max_receive_message_length", 64 << 20),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5000),  # despite its name, the minimum duration of a connection attempt
        ("grpc.max_reconnect_backoff_ms", 1000),
        # A separate channel: a connection shared with another session of this process would share its fate.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    ca = tls_ca or os.environ.get("SWITCHML_TLS_CA")
    if ca:
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(read_ca(ca)), options)
    return grpc.insecure_channel(target, options)


def is_broken(error: grpc.RpcError) -> bool:
    """Whether the connection failed or broke; every other status was set by the aggregator."""
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def is_final(error: grpc.RpcError) -> bool:
    """Whether a retry can't help: the aggregator refused, or the certificate does not match."""
    return not is_broken(error) or "SSL_ERROR_SSL" in (error.details() or "")


def words_of(error: grpc.RpcError) -> str:
    """The error's details and its code."""
    return f"{error.details() or 'no details'} ({error.code().name})"
