"""Registers, counters, meters, replication, mirroring, digests, queues: what the control plane can do, and what not."""

from threading import RLock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch.hashes import Crc
from emulator.p4switch.program import ir
from emulator.p4switch.state.arrays import MeterArray, RegisterArray
from emulator.p4switch.state.digests import DigestList
from emulator.p4switch.state.replication import Mirroring, Replication
from emulator.p4switch.state.state import Queues, State
from switchml.errors import ControlError


def refused(operation, code, function, *args, **options):
    with pytest.raises(ControlError) as caught:
        function(*args, **options)
    assert (caught.value.operation, caught.value.code) == (operation, code)


# Registers and counters


@given(st.integers(1, 300), st.integers(-(1 << 310), 1 << 310))
def test_a_register_keeps_the_low_bits_in_limbs(width, value):
    register = RegisterArray(ir.RegisterArray("r", 0, 3, width), RLock())
    register.write(1, value)
    stored = value % (1 << width)
    assert register.read_all() == [0, stored, 0]
    assert int(register.data[1, 0]) == stored % (1 << 64)


def test_registers():
    register = RegisterArray(ir.RegisterArray("r", 0, 3, 8), RLock())
    register.write_range(1, 3, 7)
    assert register.read_all() == [0, 7, 7]
    register.reset()
    assert register.read_all() == [0, 0, 0]
    refused("Register", "INVALID_INDEX", register.read, 3)
    refused("Register", "INVALID_INDEX", register.write, -1, 0)
    refused("Register", "INVALID_INDEX", register.write_range, 2, 4, 0)


# Meters


def meter(counts_bytes=False):
    return MeterArray(ir.MeterArray("m", 0, 2, 2, counts_bytes), RLock())


def test_colours_of_two_rates():
    """CIR 1 packet/ms with a burst of 1, PIR 2 packets/ms with a burst of 2."""
    packets = meter()
    packets.set_rates(0, [(0.001, 1), (0.002, 2)])
    assert [packets.execute(0, 64, 0) for _ in range(3)] == [0, 1, 2]
    assert packets.execute(0, 64, 500) == 1  # one more of the peak rate, none of the committed one
    assert packets.execute(0, 64, 3000) == 0


def test_what_meters_refuse():
    rates = meter()
    refused("Meter", "BAD_RATES_LIST", rates.set_rates, 0, [(1.0, 1)])
    refused("Meter", "INVALID_INFO_RATE_VALUE", rates.set_rates, 0, [(2.0, 1), (1.0, 1)])
    refused("Meter", "INVALID_INFO_RATE_VALUE", rates.set_rates, 0, [(float("nan"), 1), (1.0, 1)])
    refused("Meter", "INVALID_BURST_SIZE_VALUE", rates.set_rates, 0, [(1.0, -1), (1.0, 1)])
    refused("Meter", "INVALID_INDEX", rates.get_rates, 2)
    assert rates.get_rates(0) == []
    rates.set_all_rates([(0.5, 1), (1.0, 2)])
    assert rates.get_rates(1) == [(0.5, 1), (1.0, 2)]
    rates.reset_rates(1)
    assert rates.get_rates(1) == []


# Replication


def test_copies_come_in_order():
    pre = Replication(RLock())
    pre.create_group(7)
    first, second = pre.create_node(1, [5, 3]), pre.create_node(2, [4], [0])
    pre.set_lag(0, [8, 9])
    pre.associate_node(7, second)
    pre.associate_node(7, first)
    assert pre.copies(7) == [(4, 2), (9, 2), (3, 1), (5, 1)]  # 0xff % 2 is 1: the LAG's second port
    assert pre.copies(8) is None
    pre.destroy_node(second)
    assert pre.copies(7) == [(3, 1), (5, 1)]
    pre.update_node(first, [], [1])
    assert pre.copies(7) == []
    assert pre.create_node(9, []) == second


def test_what_the_pre_refuses():
    pre = Replication(RLock(), max_groups=1, max_nodes=1)
    refused("Mc", "INVALID_L1_HANDLE", pre.associate_node, 1, 0)
    node = pre.create_node(1, [1])
    refused("Mc", "TABLE_FULL", pre.create_node, 2, [1])
    refused("Mc", "INVALID_MGRP_HANDLE", pre.associate_node, 1, node)
    pre.create_group(1)
    refused("Mc", "TABLE_FULL", pre.create_group, 2)
    refused("Mc", "ERROR", pre.dissociate_node, 1, node)
    pre.associate_node(1, node)
    refused("Mc", "ERROR", pre.associate_node, 1, node)
    refused("Mc", "ERROR", pre.update_node, node, [512])
    refused("Mc", "ERROR", pre.set_lag, 257, [1])
    pre.destroy_group(1)
    pre.destroy_group(1)
    assert pre.describe()["l1_handles"] == [{"handle": node, "rid": 1, "l2_handle": 0}]


def test_nodes_of_a_destroyed_group_stay_associated():
    """As in BMv2, whose simple_pre.cpp forgets the group only."""
    pre = Replication(RLock())
    node = pre.create_node(1, [1])
    for group in (1, 2):
        pre.create_group(group)
    pre.associate_node(1, node)
    pre.destroy_group(1)
    refused("Mc", "ERROR", pre.associate_node, 2, node)
    refused("Mc", "INVALID_MGRP_HANDLE", pre.dissociate_node, 1, node)
    pre.create_group(1)
    assert pre.copies(1) == []
    refused("Mc", "ERROR", pre.associate_node, 1, node)
    pre.dissociate_node(1, node)
    pre.associate_node(2, node)
    assert pre.copies(2) == [(1, 1)]
    pre.destroy_group(2)
    pre.destroy_node(node)  # BMv2 dies of this
    assert pre.create_node(5, [2]) == node


def test_mirroring_sessions():
    sessions = Mirroring(RLock())
    sessions.add(3, port=1)
    sessions.add(3, mgid=2)
    assert (sessions.get(3).port, sessions.get(3).mgid) == (None, 2)
    sessions.delete(3)
    refused("Mirroring", "SESSION_NOT_FOUND", sessions.get, 3)
    refused("Mirroring", "SESSION_NOT_FOUND", sessions.delete, 3)
    refused("Mirroring", "SESSION_NOT_FOUND", sessions.add, 32768, port=1)


# Digests


class Clock:
    now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def digests():
    clock = Clock()
    digest_list = DigestList(ir.LearnList("d", 1, ()), (8,), RLock(), clock)
    digest_list.sent, digest_list.test_clock = [], clock
    digest_list.listeners.append(lambda digest: digest_list.sent.append(digest))
    return digest_list


def test_a_sample_is_not_repeated_until_acknowledged(digests):
    digests.set_max_samples(1)
    digests.add((1,))
    digests.add((1,))
    assert len(digests.sent) == 1
    digests.acknowledge(0, [5])
    digests.acknowledge(9)
    digests.add((1,))
    assert len(digests.sent) == 1
    digests.acknowledge(0, [0])
    digests.add((1,))
    assert [digest.buffer_id for digest in digests.sent] == [0, 1]
    refused("Learn", "ERROR", digests.set_max_samples, 0)
    refused("Learn", "ERROR", digests.set_timeout, -1)


# Queues


def test_the_most_specific_setting_of_a_queue_holds():
    queues = Queues(RLock())
    assert (queues.depth(1), queues.rate(1)) == (64, 0)
    queues.set_depth(10)
    queues.set_depth(20, port=1)
    queues.set_depth(30, port=1, priority=2)
    assert [queues.depth(0), queues.depth(1), queues.depth(1, 2)] == [10, 20, 30]
    queues.set_depth(40, port=1)
    assert queues.depth(1, 2) == 40
    queues.set_depth(50)
    assert queues.depth(1, 2) == 50


# As a whole


def test_lookup_by_name(program):
    state = State(program("registers"))
    assert state.register("MyIngress.sums").size == 16
    for function, operation, code in (
        (state.table, "Table", "INVALID_TABLE_NAME"),
        (state.action_profile, "Table", "INVALID_ACTION_PROFILE_NAME"),
        (state.counter, "Counter", "INVALID_COUNTER_NAME"),
        (state.meter, "Meter", "INVALID_METER_NAME"),
        (state.register, "Register", "INVALID_REGISTER_NAME"),
        (state.parse_vset, "ParseVSet", "INVALID_PARSE_VSET_NAME"),
        (state.digest, "Learn", "INVALID_LIST_ID"),
    ):
        refused(operation, code, function, "nothing")


def test_parse_value_sets(program):
    vset = State(program("value_set")).parse_vsets[0]
    vset.add(5)
    vset.add(3)
    assert vset.get() == [3, 5]
    vset.remove(5)
    vset.remove(5)
    assert vset.get() == [3]
    refused("ParseVSet", "ERROR", vset.add, 1 << 16)
    vset.reset()
    assert vset.get() == []


def test_custom_crcs_and_only_they_can_be_changed(program):
    state = State(program("hashes"))
    name_of = {calculation.algo: calculation.name for calculation in state.program.calculations}
    state.set_crc(name_of["crc16_custom"], Crc(16, 0x1021, 0xFFFF, 0, False, False))
    refused("Crc", "WRONG_TYPE_CALCULATION", state.set_crc, name_of["crc16"], Crc(16, 1, 0, 0, False, False))
    refused("Crc", "WRONG_TYPE_CALCULATION", state.set_crc, name_of["crc32_custom"], Crc(16, 1, 0, 0, False, False))
    refused("Crc", "INVALID_CALCULATION_NAME", state.set_crc, "nothing", Crc(16, 1, 0, 0, False, False))
    refused("ToeplitzHash", "WRONG_TYPE_CALCULATION", state.set_toeplitz_key, name_of["crc16"], bytes(4))


def test_reset_goes_back_to_the_start(program):
    state = State(program("registers"))
    state.registers[0].write(0, 5)
    state.mirroring.add(1, port=1)
    state.replication.create_group(1)
    state.reset()
    assert state.registers[0].read(0) == 0
    assert (state.mirroring.sessions, state.replication.groups) == ({}, {})
