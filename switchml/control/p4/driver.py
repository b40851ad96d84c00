"""The interface to a switch that the P4 data planes program, over Thrift (p4/thrift.py) or P4Runtime (p4/p4runtime.py),
and the properties of its program that both use."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from switchml.control.p4.tables import Changes, Entry
from switchml.errors import ConfigError, ControlError, SwitchMLError

UDP_PREFIX = "udp:"
"""Prefix of ports of switchml's switch that are UDP sockets: one Ethernet frame per datagram."""
TABLES = ("own_addresses", "workers", "workers_v1", "switches", "receivers", "loss_in", "loss_out")
"""The program's tables that a controller fills."""


class Unreachable(SwitchMLError):
    """The switch does not answer; it may have ended, or been restarted."""


class Gone(Unreachable):
    """The switch's address refuses connections: it has ended, and its state is lost."""


@dataclass(frozen=True, order=True)
class AttachedPort:
    """A port of a switch, and the interface that it is attached to."""

    number: int
    interface: str

    @property
    def is_udp(self) -> bool:
        return self.interface.startswith(UDP_PREFIX)

    @property
    def is_dynamic(self) -> bool:
        """Whether it is a UDP port with a fixed peer: those are created by controllers, for one rank each."""
        return self.is_udp and "," in self.interface


class Driver(ABC):
    """A connection to a switch at `where`. All methods raise Unreachable if it does not answer. Not thread-safe.

    `rows`: total number of slot versions of all jobs. `payloads`: payload sizes in bytes that the program supports.
    `collectives`: whether it accepts addressed packets (docs/protocol.md, section 11); `only_sums`: whether it refuses
    their ops other than the sum. `ends_early`: whether rounds can end without some ranks (section 13)."""

    rows: int
    payloads: tuple[int, ...]
    collectives: bool
    only_sums: bool
    ends_early: bool

    def __init__(self, where: str) -> None:
        self.where = where
        self._entries: dict[Entry, Any] = {}
        """Added entries → the switch's handle of each."""

    @abstractmethod
    def reconnect(self) -> None:
        """Connect again after Unreachable. Added entries are assumed to exist still. Raises ConfigError for a switch
        that can't be programmed."""

    @abstractmethod
    def reset(self) -> None:
        """Remove all state from the switch, including that of an earlier controller: a switch has one controller."""

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Zero the cells, create the groups, add the entries. If the switch refuses, raises ControlError and removes
        all of `changes`."""

    @abstractmethod
    def undo(self, changes: Changes) -> None:
        """Remove entries and groups; those that do not exist are skipped."""

    @abstractmethod
    def _table_sizes(self) -> list[int]:
        """Number of entries in each of TABLES, excluding default entries."""

    def has_state(self) -> bool:
        """Whether the added entries still exist: a switch that was restarted has none."""
        expected = Counter(entry.table for entry in self._entries)
        return self._table_sizes() == [expected[table] for table in TABLES]

    @abstractmethod
    def read_counter(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        """(packets, bytes) of cells `start` to `end - 1`."""

    @abstractmethod
    def read_register(self, name: str, start: int, end: int) -> Sequence[int] | None:
        """Cells `start` to `end - 1`; None if the switch does not provide registers."""

    def ports(self) -> Sequence[AttachedPort] | None:
        """All ports, in order; None if the switch does not list them."""
        return None

    def add_port(self, number: int, interface: str) -> None:
        """Attach a UDP port of switchml's switch, `udp:ADDRESS:PORT…`. Raises ControlError if the switch can't."""
        raise ControlError(
            "DevMgr", "ERROR", f"port {number} on {interface}: {self.where} adds none; name one by --link"
        )

    def remove_port(self, number: int) -> None:  # noqa: B027 - nothing to detach where `add_port` refuses
        """Detach a port attached by `add_port`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the switch keeps its state."""


class Layout:
    """Widths of a program's keys and parameters, from `text`, p4c's BMv2 JSON. Raises ConfigError, which names the
    switch `where`, for a program other than p4/switchml.p4."""

    def __init__(self, text: str, where: str):
        try:
            program = json.loads(text)
            types = {kind["name"]: kind["fields"] for kind in program["header_types"]}
            fields = {
                (header["name"], name): width
                for header in program["headers"]
                for name, width, *_ in types[header["header_type"]]
            }
            self._keys: dict[str, list[int]] = {
                table["name"]: [fields[tuple(key["target"])] for key in table["key"]]
                for pipeline in program["pipelines"]
                for table in pipeline["tables"]
                if all(isinstance(key["target"], list) and tuple(key["target"]) in fields for key in table["key"])
            }
            self._params = {
                action["name"]: [param["bitwidth"] for param in action["runtime_data"]] for action in program["actions"]
            }
            self.registers = {register["name"]: register["size"] for register in program["register_arrays"]}
            self.payloads = (256, 1024) if _has_payload_of_1024(program, types) else (256,)
            self.collectives = any(name.endswith(".cut") for name in self._params)  # p4/addressed.p4
            self.only_sums = not any(name.endswith(".greater") for name in self._params)  # p4/sums.p4
            # The other sums of a job with a deadline are sent in addressed packets.
            self.ends_early = self.collectives and "deadline_worker" in self._params
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the switch at {where} runs a program that can't be read: {error!r}") from error
        for table, n_params, action in (("workers", 12, "v2_worker"), ("receivers", 3, "receiver")):
            if table not in self._keys or len(self._params.get(action, ())) != n_params:
                raise ConfigError(
                    f"the switch at {where} runs another program: expected p4/switchml.p4 (it has no table {table!r} "
                    f"with an action {action!r} of {n_params} parameters)"
                )

    @property
    def rows(self) -> int:
        """Total number of slot versions of all jobs."""
        return int(self.registers["rounds"])

    def entry_bytes(self, entry: Entry) -> tuple[list[bytes], list[bytes]]:
        """(keys, parameters), big-endian and with the program's widths."""
        return (
            [_bytes(value, width) for value, width in zip(entry.key, self._keys[entry.table], strict=True)],
            [_bytes(value, width) for value, width in zip(entry.params, self._params[entry.action], strict=True)],
        )


def _bytes(value: int, width: int) -> bytes:
    return value.to_bytes((width + 7) // 8, "big")


def _has_payload_of_1024(program: dict[str, Any], types: dict[str, Any]) -> bool:
    """Whether the parser handles a payload's other 768 bytes."""
    return any(
        sum(width for _, width, *_ in types[header["header_type"]]) == 768 * 8
        for header in program["headers"]
        if not header["metadata"]
    )
