"""What the P4 data plane asks of whoever programs a switch for it, over Thrift (p4/thrift.py) or P4Runtime
(p4/p4runtime.py), and what both need to know of the program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from switchml.control.p4.tables import Changes, Entry
from switchml.errors import ConfigError, SwitchMLError

UDP_PREFIX = "udp:"
"""Ports of our switch that are UDP sockets: one Ethernet frame a datagram."""


class Unreachable(SwitchMLError):
    """The switch does not answer; it may have ended, or been started again."""


@dataclass(frozen=True, order=True)
class AttachedPort:
    """A port of a switch, and what it is attached to."""

    number: int
    interface: str

    @property
    def is_udp(self) -> bool:
        return self.interface.startswith(UDP_PREFIX)

    @property
    def is_dynamic(self) -> bool:
        """Whether it is a UDP port with a fixed peer: those are made by controllers, for one rank each."""
        return self.is_udp and "," in self.interface


class Driver(Protocol):
    """A connection to a switch. All methods raise Unreachable if it does not answer."""

    where: str
    rows: int
    """Versions of slots of all jobs together."""
    payloads: tuple[int, ...]
    """Sizes of payload that the program takes, in bytes."""

    def reconnect(self) -> None:
        """Try again after Unreachable. What was put in is believed to be there still."""

    def reset(self) -> None:
        """Take out whatever is in the switch, also what an earlier controller left: a switch has one controller."""

    def apply(self, changes: Changes) -> None:
        """Zero the cells, make the groups, add the entries. Raises ControlError if the switch refuses; then nothing of
        `changes` stays."""

    def undo(self, changes: Changes) -> None:
        """Take entries and groups out; what is not there is passed over."""

    def has_state(self) -> bool:
        """Whether what was put in is still there."""

    def read_counter(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        """(packets, bytes) of cells `start` to `end - 1`."""

    def read_register(self, name: str, start: int, end: int) -> Sequence[int] | None:
        """Cells `start` to `end - 1`; None if this way of talking to the switch does not show registers."""

    def ports(self) -> Sequence[AttachedPort] | None:
        """All ports; None if this way of talking to the switch does not show them."""

    def add_port(self, number: int, interface: str) -> None:
        """Attach a UDP port. Raises ControlError if the switch can't."""

    def remove_port(self, number: int) -> None:
        """Detach what `add_port` attached."""

    def close(self) -> None:
        """Hang up; what is in the switch stays there."""


class Layout:
    """How wide a program's keys and parameters are. `text` is p4c's BMv2 JSON. Raises ConfigError if it is no program
    like p4/switchml.p4; `where` says whose it is."""

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
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the switch at {where} runs a program that can't be read: {error!r}") from error
        for table, n_params, action in (("workers", 11, "v2_worker"), ("receivers", 3, "receiver")):
            if table not in self._keys or len(self._params.get(action, ())) != n_params:
                raise ConfigError(
                    f"the switch at {where} runs another program: expected p4/switchml.p4 (it has no table {table!r} "
                    f"with an action {action!r} of {n_params} parameters)"
                )

    @property
    def rows(self) -> int:
        """Versions of slots of all jobs together."""
        return self.registers["rounds"]

    def entry_bytes(self, entry: Entry) -> tuple[list[bytes], list[bytes]]:
        """(keys, parameters), big-endian and as wide as the program has them."""
        return (
            [_bytes(value, width) for value, width in zip(entry.key, self._keys[entry.table], strict=True)],
            [_bytes(value, width) for value, width in zip(entry.params, self._params[entry.action], strict=True)],
        )


def _bytes(value: int, width: int) -> bytes:
    return value.to_bytes((width + 7) // 8, "big")


def _has_payload_of_1024(program: dict[str, Any], types: dict[str, Any]) -> bool:
    """Whether the parser knows a payload's other 768 bytes."""
    return any(
        sum(width for _, width, *_ in types[header["header_type"]]) == 768 * 8
        for header in program["headers"]
        if not header["metadata"]
    )
