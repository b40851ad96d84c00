"""Network namespaces that processes have made."""

import os

from emulator.networks.testbed import namespaces


def names_of(pid: int) -> list[str]:
    prefix = f"{namespaces.PREFIX}-{pid}-"
    return [name for name in os.listdir(namespaces.NETNS_DIR) if name.startswith(prefix)]
