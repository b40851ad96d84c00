"""Classification of communication kernels: the table of `data/communication.toml`, preceded by a user's own."""

import os
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from emulator.datafile import build_all
from emulator.jobs.workload.graph import Collective
from emulator.traces.communication import collective_of
from switchml.errors import ConfigError

VARIABLE = "SWITCHML_COMMUNICATION_KERNELS"
BUILT_IN = Path(__file__).parent / "data" / "communication.toml"
_KNOWN = [one.name.lower() for one in Collective if one not in (Collective.NONE, Collective.P2P)]
_OPERATION = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|(?<=_)sendrecv|(?<=_)reduce", re.IGNORECASE
)


@dataclass(frozen=True)
class KernelFamily:
    """A table of the file; its keys are documented at the top of the file. Raises ConfigError."""

    kernels: str
    library: str = ""
    collective: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.kernels)
        except re.error as error:
            raise ConfigError(f"kernels is not a regular expression: {error}") from None
        if self.collective and self.collective not in _KNOWN:
            raise ConfigError(f"collective: unknown {self.collective!r}, expected {', '.join(_KNOWN)}")

    def collective_of(self, name: str) -> Collective:
        """Return the operation of a kernel; NONE if only the host's event determines it."""
        if self.collective:
            return Collective[self.collective.upper()]
        match = _OPERATION.search(name)
        # Between all ranks of a group, unless the host's event differs (`kineto.communication`).
        is_exchange = match is not None and match[0].lower() == "sendrecv"
        return Collective.ALL_TO_ALL if is_exchange else collective_of(match[0]) if match else Collective.NONE


def family_of(name: str) -> KernelFamily | None:
    """Return the family of a communication kernel; None for others. Raises ConfigError if the user's table is
    invalid."""
    return _family_of(name, os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=1 << 14)
def _family_of(name: str, own: str) -> KernelFamily | None:
    plain = without_arguments(name)
    return next((family for rule, family in _rules(own) if rule.search(plain)), None)


@cache
def _rules(own: str) -> list[tuple[re.Pattern[str], KernelFamily]]:
    paths = [Path(own), BUILT_IN] if own else [BUILT_IN]
    families = [family for path in paths for family in build_all(KernelFamily, path).values()]
    return [(re.compile(family.kernels, re.IGNORECASE), family) for family in families]


@lru_cache(maxsize=1 << 14)
def without_arguments(name: str) -> str:
    """Return a kernel's name without template arguments and parameters, which describe its inputs rather than its
    operation."""
    depth, letters = 0, []
    for character in name.replace("(anonymous namespace)", "anonymous"):
        depth += character in "<("
        if not depth:
            letters.append(character)
        depth = max(depth - (character in ">)"), 0)
    return "".join(letters) or name
