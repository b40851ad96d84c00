"""Certificates for 127.0.0.1 of a test's own, which are valid from yesterday on. Needs the package cryptography."""

import datetime
import ipaddress
from pathlib import Path

import pytest


def certificate(folder: Path, name: str, signer=None, days: float = 1.0) -> tuple[Path, Path, tuple]:
    """(certificate, key, what signs others with it): signed by itself without `signer`, valid for so many `days`."""
    x509 = pytest.importorskip("cryptography.x509", reason="needs the package cryptography, which makes certificates")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signing_key = signer or (subject, key)
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day).not_valid_after(now + days * day)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(signing_key, hashes.SHA256())
    )  # fmt: skip
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return *paths, (subject, key)
