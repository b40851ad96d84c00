"""Programs a switch that runs p4/switchml.p4 over BMv2's Thrift interface: switchml's switch or simple_switch.

The widths of keys and parameters come from the program that the switch reports.
"""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from switchml.control.p4.driver import TABLES, AttachedPort, Driver, Gone, Layout, Unreachable
from switchml.control.p4.tables import Changes, Entry, Group
from switchml.control.thrift.client import Client
from switchml.control.thrift.protocol import ProtocolError
from switchml.errors import ConfigError, ControlError

TIMEOUT_S = 60.0
"""Timeout in seconds of one answer: switchml's switch compiles for a while when it first starts on a machine."""
QUEUE_DEPTH = 1 << 16
"""Capacity in packets of an egress queue of simple_switch, instead of 64: a window of results is sent at once."""
_EXACT = 0


class ThriftSwitch(Driver):
    """A switch at `host`:`port`, or at the Unix socket whose absolute path is `host`. Raises Unreachable if nothing
    answers there, ConfigError if it runs another program."""

    def __init__(self, host: str, port: int = 0):
        super().__init__(f"thrift://{host}" if host.startswith("/") else f"thrift://{host}:{port}")
        self._address = host, port
        self._client: Client | None = None
        self._groups: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._added_ports: set[int] = set()
        self.reconnect()
        self.rows, self.payloads = self._layout.rows, self._layout.payloads
        self.collectives, self.only_sums = self._layout.collectives, self._layout.only_sums
        self.ends_early = self._layout.ends_early

    def reconnect(self) -> None:
        self.close()
        try:
            self._client = Client(*self._address, TIMEOUT_S)
        except OSError as error:
            kind = Gone if isinstance(error, (ConnectionRefusedError, FileNotFoundError)) else Unreachable
            raise kind(f"no switch at {self.where}: {error.strerror or error}") from error
        self._layout = Layout(self._call("standard", "bm_get_config"), self.where)

    def reset(self) -> None:
        self._entries.clear()
        self._groups.clear()
        self._added_ports.clear()
        for table in TABLES:
            self._call("standard", "bm_mt_clear_entries", cxt=0, table=table, reset_default=False)
        replication = json.loads(self._call("simple_pre_lag", "bm_mc_get_entries", cxt=0))
        for group in replication.get("mgrps") or []:
            self._drop_group(group["id"], group.get("l1_handles") or [])
        for port in self.ports():
            if port.is_dynamic:
                self._call("standard", "bm_dev_mgr_remove_port", port=port.number)
        self._call("simple_switch", "set_all_egress_queue_depths", depth=QUEUE_DEPTH)

    # State

    def apply(self, changes: Changes) -> None:
        zero = SimpleNamespace(bytes=0, packets=0)
        try:
            for cells in changes.counters:
                one = {"cxt": 0, "counter": cells.name, "value": zero}
                self._calls("standard", "bm_counter_write", [one | {"index": i} for i in range(cells.start, cells.end)])
            for group in changes.groups:
                self._make_group(group)
            for entry in changes.entries:
                self._entries[entry] = self._call("standard", "bm_mt_add_entry", **self._entry(entry))
        except ControlError:
            self.undo(changes)
            raise

    def undo(self, changes: Changes) -> None:
        for entry in changes.entries:
            handle = self._entries.pop(entry, None)
            if handle is not None:
                self._call("standard", "bm_mt_delete_entry", cxt=0, table=entry.table, entry=handle)
        for group in changes.groups:
            if group.group in self._groups:
                self._drop_group(*self._groups.pop(group.group))

    def _table_sizes(self) -> list[int]:
        return self._calls("standard", "bm_mt_get_num_entries", [{"cxt": 0, "table": name} for name in TABLES])

    def read_counter(self, name: str, start: int, end: int) -> list[tuple[int, int]]:
        cells = [{"cxt": 0, "counter": name, "index": index} for index in range(start, end)]
        return [(cell.packets, cell.bytes) for cell in self._calls("standard", "bm_counter_read", cells)]

    def read_register(self, name: str, start: int, end: int) -> list[int]:
        """Cells as signed 64-bit numbers."""
        cells = [{"cxt": 0, "array": name, "index": index} for index in range(start, end)]
        return self._calls("standard", "bm_register_read", cells)

    # Ports

    def ports(self) -> list[AttachedPort]:
        ports = self._call("standard", "bm_dev_mgr_show_ports")
        return sorted(AttachedPort(port.port_num, port.iface_name) for port in ports)

    def add_port(self, number: int, interface: str) -> None:
        self._call("standard", "bm_dev_mgr_add_port", iface_name=interface, port=number, pcap="")
        self._added_ports.add(number)

    def remove_port(self, number: int) -> None:
        if number in self._added_ports:
            self._added_ports.remove(number)
            self._call("standard", "bm_dev_mgr_remove_port", port=number)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # Internal

    def _call(self, service: str, name: str, /, **arguments: Any) -> Any:
        return self._calls(service, name, [arguments])[0]

    def _calls(self, service: str, name: str, many: Sequence[dict[str, Any]]) -> list[Any]:
        if self._client is None:
            raise Unreachable(f"no connection to the switch at {self.where}")
        try:
            return self._client.calls(service, name, many)
        except (OSError, EOFError, ProtocolError) as error:
            self.close()  # late answers would be mistaken for those of later calls
            reason = getattr(error, "strerror", None) or str(error) or "it disconnected"
            raise Unreachable(f"the switch at {self.where} does not answer: {reason}") from error

    def _entry(self, entry: Entry) -> dict[str, Any]:
        keys, params = self._layout.entry_bytes(entry)
        return {
            "cxt": 0,
            "table": entry.table,
            "match": [SimpleNamespace(type=_EXACT, exact=SimpleNamespace(key=key)) for key in keys],
            "action": entry.action,
            "data": params,
            "options": SimpleNamespace(),
        }

    def _make_group(self, group: Group) -> None:
        if group.group in self._groups:  # replaced, since another rank's address has become known
            self._drop_group(*self._groups.pop(group.group))
        handle = self._call("simple_pre_lag", "bm_mc_mgrp_create", cxt=0, mgid=group.group)
        nodes: list[int] = []
        self._groups[group.group] = handle, ()
        for rid, port in group.copies:
            bits = "1" + "0" * port
            nodes.append(self._call("simple_pre_lag", "bm_mc_node_create", cxt=0, rid=rid, ports=bits, lags=""))
            self._groups[group.group] = handle, tuple(nodes)
        self._calls(
            "simple_pre_lag", "bm_mc_node_associate", [{"cxt": 0, "group": handle, "node": node} for node in nodes]
        )

    def _drop_group(self, handle: int, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._call("simple_pre_lag", "bm_mc_node_dissociate", cxt=0, group=handle, node=node)
            self._call("simple_pre_lag", "bm_mc_node_destroy", cxt=0, node=node)
        self._call("simple_pre_lag", "bm_mc_mgrp_destroy", cxt=0, group=handle)


def parse_thrift(address: str) -> tuple[str, int]:
    """Parse `thrift://HOST:PORT` to (host, port), or a Unix socket's `thrift:///PATH` to (path, 0). Raises
    ConfigError."""
    if address.startswith("thrift:///"):
        return address.removeprefix("thrift://"), 0
    host, _, port = address.removeprefix("thrift://").rpartition(":")
    if not address.startswith("thrift://") or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"switch {address!r}: expected p4, bmv2, p4runtime://HOST:PORT, thrift:///PATH, or thrift://HOST:PORT like "
            "thrift://127.0.0.1:9090"
        )
    return host.strip("[]"), int(port)
