"""The services of BMv2's switches except for the calls on tables, which are in tables.py: `standard`, common to all
targets; `simple_pre` and `simple_pre_lag`, multicast groups and their nodes; `simple_switch`, mirroring sessions,
egress queues and the clock."""

import hashlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from emulator.p4switch.hashes import Crc
from emulator.p4switch.program.ir import Named
from emulator.p4switch.state.arrays import CounterArray, MeterArray, RegisterArray
from emulator.p4switch.state.digests import DigestList
from emulator.p4switch.state.replication import MAX_PORTS, Replication, Session
from emulator.p4switch.state.state import ParseVSet, Queues, State
from emulator.p4switch.thrift import tables
from emulator.p4switch.thrift.tables import Handler, Uncaught, forwarding
from emulator.p4switch.values import n_bytes
from switchml import logs
from switchml.errors import ConfigError, ControlError

log = logs.of("switchml.bmv2")

_RESOURCES = ("tables", "action_profiles", "counters", "meters", "registers", "learn_lists")
"""Attribute of the program for each ResourceType."""

LARGEST = (1 << 63) - 1
"""The largest register value that the interface can represent, in signed 64 bits; larger ones are returned as this."""


def _number(value: bytes) -> tuple[int]:
    """A value of a parse value set. BMv2 crashes on the additional byte that simple_switch_CLI sends for whole-byte
    widths."""
    return (int.from_bytes(value, "big"),)


def _refusable(change: Callable[..., None], *arguments: Any) -> None:
    """Execute a change of ports; ConfigError is converted to ControlError."""
    try:
        change(*arguments)
    except ConfigError as error:
        raise ControlError("DevMgr", "ERROR", str(error)) from error


def _crc_setting(width: int) -> Handler:
    """The handler of a call that sets the parameters of a custom CRC."""

    def answer(self: tables.CallHandlers, cxt: int, calculation: str, p: SimpleNamespace) -> None:
        numbers = p.polynomial or 0, p.initial_remainder or 0, p.final_xor_value or 0
        crc = Crc(width, *numbers, bool(p.data_reflected), bool(p.remainder_reflected))
        self.device.state.set_crc(calculation, crc)

    return answer


class Standard(tables.TableCalls):
    """Service `standard`."""

    # Counters, meters, registers

    bm_counter_read = forwarding(State.counter, CounterArray.read, to_wire=tables.counter_to_wire)
    bm_counter_write = forwarding(State.counter, CounterArray.write, tables.counter_from_wire)
    bm_counter_reset_all = forwarding(State.counter, CounterArray.reset)
    bm_meter_array_set_rates = forwarding(State.meter, MeterArray.set_all_rates, tables.rates_from_wire)
    bm_meter_set_rates = forwarding(State.meter, MeterArray.set_rates, tables.rates_from_wire)
    bm_meter_get_rates = forwarding(State.meter, MeterArray.get_rates, to_wire=tables.rates_to_wire)
    bm_register_read = forwarding(State.register, RegisterArray.read, to_wire=lambda value: min(value, LARGEST))
    bm_register_write = forwarding(State.register, RegisterArray.write)
    bm_register_write_range = forwarding(State.register, RegisterArray.write_range)
    bm_register_reset = forwarding(State.register, RegisterArray.reset)

    def bm_register_read_all(self, cxt: int, array: str) -> list[int]:
        return [min(value, LARGEST) for value in self.device.state.register(array).read_all()]

    # Parse value sets

    bm_parse_vset_add = forwarding(State.parse_vset, ParseVSet.add, _number)
    bm_parse_vset_remove = forwarding(State.parse_vset, ParseVSet.remove, _number)
    bm_parse_vset_clear = forwarding(State.parse_vset, ParseVSet.reset)

    def bm_parse_vset_get(self, cxt: int, vset: str) -> list[bytes]:
        value_set = self.device.state.parse_vset(vset)
        return [value.to_bytes(n_bytes(value_set.width), "big") for value in value_set.get()]

    # Digests

    bm_learning_ack = forwarding(State.digest, DigestList.acknowledge)
    bm_learning_ack_buffer = forwarding(State.digest, DigestList.acknowledge)
    bm_learning_set_timeout = forwarding(State.digest, DigestList.set_timeout)
    bm_learning_set_buffer_size = forwarding(State.digest, DigestList.set_max_samples)

    # Ports

    def bm_dev_mgr_add_port(self, iface_name: str, port: int, pcap: str) -> None:
        _refusable(self.device.ports.add, port, iface_name, pcap or None)

    def bm_dev_mgr_remove_port(self, port: int) -> None:
        _refusable(self.device.ports.remove, port)

    def bm_dev_mgr_show_ports(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(port_num=port.number, iface_name=port.interface, is_up=port.is_up, extra=port.extra)
            for port in self.device.ports.show()
        ]

    # The program

    def bm_get_config(self) -> str:
        return self.device.state.program.text

    def bm_get_config_md5(self) -> bytes:
        return hashlib.md5(self.device.state.program.text.encode(), usedforsecurity=False).digest()

    def bm_load_new_config(self, config: str) -> None:
        self.device.load_later(config)

    def bm_swap_configs(self) -> None:
        self.device.swap()

    def bm_get_id_from_name(self, cxt: int, sort: int, name: str) -> int:
        if not 0 <= sort < len(_RESOURCES):
            raise ControlError("IdLookup", "INVALID_RESOURCE_TYPE", f"there is no resource type {sort}")
        resources: tuple[Named, ...] = getattr(self.device.state.program, _RESOURCES[sort])
        for item in resources:
            if item.name == name:
                return item.id
        raise ControlError("IdLookup", "INVALID_RESOURCE_NAME", f"the program has no {name!r}")

    bm_set_crc16_custom_parameters, bm_set_crc32_custom_parameters = _crc_setting(16), _crc_setting(32)

    def bm_set_toeplitz_hash_key(self, cxt: int, calculation: str, key: bytes) -> None:
        self.device.state.set_toeplitz_key(calculation, key)

    # The switch

    def bm_mgmt_get_info(self) -> SimpleNamespace:
        return SimpleNamespace(
            device_id=self.device.device_id,
            thrift_port=self.device.thrift_port,
            notifications_socket=self.device.notifications_address,
        )

    def bm_reset_state(self) -> None:
        self.device.state.reset()

    def bm_serialize_state(self) -> str:
        return self.device.serialize()


def ports_of(bits: str) -> list[int]:
    """Numbers in a set of ports or LAGs: one character 0 or 1 for each, port 0 last. Like BMv2, ignores characters of a
    longer text after the first MAX_PORTS."""
    bits = bits[:MAX_PORTS]
    if set(bits) - set("01"):
        raise Uncaught("bitset::_M_copy_from_ptr")
    return [number for number, bit in enumerate(reversed(bits)) if bit == "1"]


def _replicating(method: Callable[..., Any]) -> Handler:
    """The handler of a call whose arguments are a context and those of a method of Replication; text arguments are
    sets."""

    def answer(self: tables.CallHandlers, cxt: int, *arguments: int | str) -> Any:
        numbers = [ports_of(value) if isinstance(value, str) else value for value in arguments]
        return method(self.device.state.replication, *numbers)

    return answer


class SimplePreLag(tables.CallHandlers):
    """Services `simple_pre` and `simple_pre_lag`."""

    bm_mc_mgrp_create = _replicating(Replication.create_group)
    bm_mc_mgrp_destroy = _replicating(Replication.destroy_group)
    bm_mc_node_create = _replicating(Replication.create_node)
    bm_mc_node_update = _replicating(Replication.update_node)
    bm_mc_node_associate = _replicating(Replication.associate_node)
    bm_mc_node_dissociate = _replicating(Replication.dissociate_node)
    bm_mc_node_destroy = _replicating(Replication.destroy_node)
    bm_mc_set_lag_membership = _replicating(Replication.set_lag)

    def bm_mc_get_entries(self, cxt: int) -> str:
        return json.dumps(self.device.state.replication.describe())


def _queue_setting(set_value: Callable[..., None]) -> Handler:
    """The handler of a call that sets the depth or rate of all egress queues, of a port's or of a single one: port and
    priority are the first arguments, the value is the last."""

    def answer(self: tables.CallHandlers, *arguments: int) -> int:
        *queue, value = arguments
        n = self.device.switch.n_priorities
        if len(queue) == 2 and not 0 <= queue[1] < n:
            place = queue[1] % (1 << 64)
            raise Uncaught(f"vector::_M_range_check: __n (which is {place}) >= this->size() (which is {n})")
        set_value(self.device.state.queues, value, *queue)
        return 0

    return answer


class SimpleSwitch(tables.CallHandlers):
    """Service `simple_switch`."""

    # Mirroring; the first three predate BMv2 1.11, and report failure by their result

    def mirroring_mapping_add(self, session: int, port: int) -> int:
        self.mirroring_session_add(session, SimpleNamespace(port=port, mgid=None))
        return 0

    def mirroring_mapping_delete(self, session: int) -> int:
        try:
            self.device.state.mirroring.delete(session)
        except ControlError:
            return 1
        return 0

    def mirroring_mapping_get_egress_port(self, session: int) -> int:
        target = self.device.state.mirroring.sessions.get(session)
        return -1 if target is None or target.port is None else target.port

    def mirroring_session_add(self, session: int, config: SimpleNamespace) -> None:
        try:
            self.device.state.mirroring.add(session, config.port, config.mgid)
        except ControlError as error:  # as in BMv2, a number out of range is only logged
            log.error("%s", error)

    def mirroring_session_delete(self, session: int) -> None:
        self.device.state.mirroring.delete(session)

    def mirroring_session_get(self, session: int) -> Session:
        return self.device.state.mirroring.get(session)

    # Queues

    set_egress_priority_queue_depth = _queue_setting(Queues.set_depth)
    set_egress_queue_depth = _queue_setting(Queues.set_depth)
    set_all_egress_queue_depths = _queue_setting(Queues.set_depth)
    set_egress_priority_queue_rate = _queue_setting(Queues.set_rate)
    set_egress_queue_rate = _queue_setting(Queues.set_rate)
    set_all_egress_queue_rates = _queue_setting(Queues.set_rate)

    # Clock

    def get_time_elapsed_us(self) -> int:
        return self.device.switch.clock()

    def get_time_since_epoch_us(self) -> int:
        return self.device.started_us + self.device.switch.clock()
