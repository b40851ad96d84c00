"""Requirements of this machine for running BMv2's simple_switch on veth pairs."""

import os
import shutil

from switchml.errors import ConfigError


def missing_requirements() -> list[str]:
    """Descriptions of missing requirements; empty if it can run."""
    return [
        words
        for words, is_there in (
            ("simple_switch on PATH (p4lang's behavioral-model)", bool(shutil.which("simple_switch"))),
            ("ip (Debian: iproute2)", bool(shutil.which("ip"))),
            ("root, for network interfaces", os.geteuid() == 0),
        )
        if not is_there
    ]


def check() -> None:
    """Raises ConfigError if it can't run."""
    if missing := missing_requirements():
        raise ConfigError(f"the aggregator bmv2 needs {' and '.join(missing)}; the aggregator p4 needs none of it")
