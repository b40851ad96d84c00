"""Service `standard`: the calls that every BMv2 target answers. Those on tables are in tables.py."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

from emulator.p4switch.device import Device
from emulator.p4switch.state.arrays import CounterArray, RegisterArray
from emulator.p4switch.state.digests import DigestList
from emulator.p4switch.state.state import ParseVSet, State
from emulator.p4switch.thrift.handlers import passed_to
from emulator.p4switch.thrift.tables import TableCalls, counter_to_wire, rates_from_wire, rates_to_wire
from emulator.p4switch.values import n_bytes
from switchml.errors import ControlError

_RESOURCES = ("tables", "action_profiles", "counters", "meters", "registers", "learn_lists")
"""The attribute of the program for each ResourceType."""

LARGEST = (1 << 63) - 1
"""The largest register value that the interface can carry."""


class Standard(TableCalls):
    """Answers for `device`."""

    def __init__(self, device: Device) -> None:
        self.device = device

    # Counters and meters

    def bm_counter_read(self, cxt, counter, index):
        return counter_to_wire(*self.device.state.counter(counter).read(index))

    bm_counter_reset_all = passed_to(State.counter, CounterArray.reset)

    def bm_counter_write(self, cxt, counter, index, value):
        self.device.state.counter(counter).write(index, value.packets or 0, value.bytes or 0)

    def bm_meter_array_set_rates(self, cxt, meter, rates):
        self.device.state.meter(meter).set_all_rates(rates_from_wire(rates))

    def bm_meter_set_rates(self, cxt, meter, index, rates):
        self.device.state.meter(meter).set_rates(index, rates_from_wire(rates))

    def bm_meter_get_rates(self, cxt, meter, index):
        return rates_to_wire(self.device.state.meter(meter).get_rates(index))

    # Registers: the interface has signed 64 bits for a value; a larger one reads as LARGEST

    def bm_register_read(self, cxt, array, index):
        return min(self.device.state.register(array).read(index), LARGEST)

    def bm_register_read_all(self, cxt, array):
        return [min(value, LARGEST) for value in self.device.state.register(array).read_all()]

    bm_register_write = passed_to(State.register, RegisterArray.write)
    bm_register_write_range = passed_to(State.register, RegisterArray.write_range)
    bm_register_reset = passed_to(State.register, RegisterArray.reset)

    # Parse value sets: simple_switch_CLI sends values of whole bytes with a byte too many, on which BMv2 dies

    def bm_parse_vset_add(self, cxt, vset, value):
        self.device.state.parse_vset(vset).add(int.from_bytes(value, "big"))

    def bm_parse_vset_remove(self, cxt, vset, value):
        self.device.state.parse_vset(vset).remove(int.from_bytes(value, "big"))

    def bm_parse_vset_get(self, cxt, vset):
        value_set = self.device.state.parse_vset(vset)
        return [value.to_bytes(n_bytes(value_set.width), "big") for value in value_set.get()]

    bm_parse_vset_clear = passed_to(State.parse_vset, ParseVSet.clear)

    # Digests

    bm_learning_ack = passed_to(State.digest, DigestList.acknowledge)
    bm_learning_ack_buffer = passed_to(State.digest, DigestList.acknowledge)
    bm_learning_set_timeout = passed_to(State.digest, DigestList.set_timeout)
    bm_learning_set_buffer_size = passed_to(State.digest, DigestList.set_max_samples)

    # Ports

    def bm_dev_mgr_add_port(self, iface_name, port, pcap):
        self.device.add_port(port, iface_name, pcap or None)

    def bm_dev_mgr_remove_port(self, port):
        self.device.remove_port(port)

    def bm_dev_mgr_show_ports(self):
        return [
            SimpleNamespace(port_num=port.number, iface_name=port.interface, is_up=port.is_up, extra=port.extra)
            for port in self.device.show_ports()
        ]

    # The program

    def bm_get_config(self):
        return self.device.state.program.text

    def bm_get_config_md5(self):
        return hashlib.md5(self.device.state.program.text.encode(), usedforsecurity=False).digest()

    def bm_load_new_config(self, config):
        self.device.load_later(config)

    def bm_swap_configs(self):
        self.device.swap()

    def bm_get_id_from_name(self, cxt, sort, name):
        if not 0 <= sort < len(_RESOURCES):
            raise ControlError("IdLookup", "INVALID_RESOURCE_TYPE", f"there is no resource type {sort}")
        for item in getattr(self.device.state.program, _RESOURCES[sort]):
            if item.name == name:
                return item.id
        raise ControlError("IdLookup", "INVALID_RESOURCE_NAME", f"the program has no {name!r}")

    def bm_set_crc16_custom_parameters(self, cxt, calculation, parameters):
        self._set_crc(calculation, 16, parameters)

    def bm_set_crc32_custom_parameters(self, cxt, calculation, parameters):
        self._set_crc(calculation, 32, parameters)

    def _set_crc(self, calculation: str, width: int, parameters: SimpleNamespace) -> None:
        limit = (1 << width) - 1
        numbers = parameters.polynomial, parameters.initial_remainder, parameters.final_xor_value
        self.device.state.set_crc(
            calculation,
            width,
            *((number or 0) & limit for number in numbers),
            bool(parameters.data_reflected),
            bool(parameters.remainder_reflected),
        )

    def bm_set_toeplitz_hash_key(self, cxt, calculation, key):
        self.device.state.set_toeplitz_key(calculation, key)

    # The switch

    def bm_mgmt_get_info(self):
        device = self.device
        return SimpleNamespace(
            device_id=device.device_id,
            thrift_port=device.thrift_port,
            notifications_socket=device.notifications_address,
        )

    def bm_reset_state(self):
        self.device.state.reset()

    def bm_serialize_state(self):
        return self.device.serialize()
