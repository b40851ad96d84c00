"""The secret of a job that a user gives to each rank: in the environment, or in a file that nobody else can read; and
the exposure of a generated secret in torch's store otherwise."""

import ipaddress
import os
import socket
import stat

from switchml.errors import ConfigError
from switchml.files import read_text

VARIABLE, FILE_VARIABLE = "SWITCHML_SECRET", "SWITCHML_SECRET_FILE"
LONGEST = 4096
"""Maximum bytes of the file."""


def given_secret() -> str:
    """SWITCHML_SECRET, or else the content of the file in SWITCHML_SECRET_FILE, stripped of white space; "" if neither
    is set. Raises ConfigError if that file can't be read, is empty or longer than `LONGEST` bytes, or if users other
    than this one and root own it or may open it."""
    secret, path = os.environ.get(VARIABLE, ""), os.environ.get(FILE_VARIABLE, "")
    if secret or not path:
        return secret
    try:
        text = read_text(path, limit=LONGEST).strip()
        status = os.stat(path)
    except (ConfigError, OSError) as error:
        raise ConfigError(f"{FILE_VARIABLE}: {error}") from None
    if status.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"{FILE_VARIABLE}: {path} has mode {stat.S_IMODE(status.st_mode):o} and owner {status.st_uid}; expected a "
            "file that this user alone can read: chmod 600"
        )
    if not text:
        raise ConfigError(f"{FILE_VARIABLE}: {path} is empty; expected a secret")
    return text


def is_beyond_loopback(host: str) -> bool:
    """Whether a host name or address is valid on other machines, too. True for a name that can't be resolved."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return not all(ipaddress.ip_address(address).is_loopback for address in found)


def open_secret(host: str) -> str:
    """Warning that rank 0 has generated a job's secret, and that a store at `host` exposes it."""
    return (
        f"its secret lies in torch's store at {host}, which listens on all addresses: whoever reaches that port can "
        "read it, and so join the job and see it; set SWITCHML_SECRET or SWITCHML_SECRET_FILE alike on all ranks "
        "(docs/security.md)"
    )
