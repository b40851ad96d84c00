"""Tables: every kind of match against a brute-force one, handles, and BMv2's error codes."""

from threading import RLock
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch.program import ir
from emulator.p4switch.state.action_profiles import RunAction, UseGroup, UseMember
from emulator.p4switch.state.state import State
from emulator.p4switch.state.tables import MatchTable
from switchml.errors import ControlError

M = ir.MatchParam


def refused(code, function, *args, **options):
    with pytest.raises(ControlError) as caught:
        function(*args, **options)
    assert (caught.value.operation, caught.value.code) == ("Table", code)


def any_action(table, args=None):
    """A target: the table's first action, with some arguments."""
    index = table.table.actions[0]
    return RunAction(index, tuple(args or [0] * len(table.program.actions[index].params)))


# Look-up


def single(kind, width, **options):
    """A table with one field of a kind, and NoAction."""
    key = (ir.KeyField(kind, None, width, "f", **options),)
    table = ir.Table("t", 0, 0, kind, ir.SIMPLE, key, (0,), 64)
    program = type("P", (), {"actions": (ir.Action("a", 0, (), ()),)})
    return MatchTable(table, program, RLock())


@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 12)), max_size=12), st.integers(0, 4095))
def test_lpm_takes_the_longest_prefix_and_counts_the_padding(entries, value):
    """BMv2 compares bytes: of a /n on 12 bits, the first 4 bits are padding."""
    table = single("lpm", 12)
    best = None
    for prefix, length in entries:
        try:
            handle = table.add([M("lpm", prefix, length)], RunAction(0))
        except ControlError as error:
            assert error.code == "DUPLICATE_ENTRY"
            continue
        n_zero_bits = max(12 - max(length - 4, 0), 0)
        if value >> n_zero_bits == prefix >> n_zero_bits and (best is None or length > best[0]):
            best = length, handle
    hit = table.lookup([value])
    assert (hit and hit.handle) == (best and best[1])


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 3)), max_size=10), st.integers(0, 15))
def test_ternary_takes_the_lowest_priority_number_and_then_the_lowest_index(entries, value):
    table = single("ternary", 4)
    added = []
    for want, mask, priority in entries:
        try:
            handle = table.add([M("ternary", want, mask)], RunAction(0), priority)
        except ControlError as error:
            assert error.code == "DUPLICATE_ENTRY"
        else:
            added.append((priority, handle, want & mask, mask))
    fitting = sorted(entry for entry in added if value & entry[3] == entry[2])
    hit = table.lookup([value])
    assert (hit and hit.handle) == (fitting[0][1] if fitting else None)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=8), st.integers(0, 99))
def test_ranges_include_both_ends(entries, value):
    table = single("range", 7)
    added = []
    for low, high in entries:
        priority = len(added)
        if low > high:
            refused("BAD_MATCH_KEY", table.add, [M("range", low, high)], RunAction(0), priority)
        else:
            added.append((low, high, table.add([M("range", low, high)], RunAction(0), priority)))
    hit = table.lookup([value])
    assert (hit and hit.handle) == next((handle for low, high, handle in added if low <= value <= high), None)


def test_a_prefix_in_a_table_with_priorities_is_cut_to_its_length():
    """BMv2 stores it as a mask, and the value without the bits that the mask leaves out."""
    key = (ir.KeyField("lpm", None, 32, "prefix"), ir.KeyField("ternary", None, 8, "rest"))
    program = type("P", (), {"actions": (ir.Action("a", 0, (), ()),)})
    table = MatchTable(ir.Table("t", 0, 0, "ternary", ir.SIMPLE, key, (0,), 64), program, RLock())
    handle = table.add([M("lpm", 0x0A010203, 8), M("ternary", 0xFF, 0x0F)], RunAction(0), 1)
    assert table.entry(handle).match == (M("lpm", 0x0A000000, 8), M("ternary", 0x0F, 0x0F))
    refused("DUPLICATE_ENTRY", table.add, [M("lpm", 0x0AFFFFFF, 8), M("ternary", 0x0F, 0x0F)], RunAction(0), 1)
    table.add([M("lpm", 0x0A000000, 9), M("ternary", 0x0F, 0x0F)], RunAction(0), 1)
    assert table.lookup([0x0AFF0000, 0x1F]).handle == handle


def test_a_static_mask_applies_to_entries():
    table = single("exact", 16, mask=0x0FFF)
    table.add([M("exact", 0xA123)], RunAction(0))
    assert table.lookup([0x0123])
    refused("DUPLICATE_ENTRY", table.add, [M("exact", 0xB123)], RunAction(0))


# Handles


def test_the_smallest_free_index_is_reused_with_a_new_version():
    table = single("exact", 8)
    handles = [table.add([M("exact", value)], RunAction(0)) for value in range(4)]
    assert handles == [0, 1, 2, 3]
    table.delete(2)
    table.delete(1)
    assert table.add([M("exact", 9)], RunAction(0)) == 1 << 24 | 1
    refused("EXPIRED_HANDLE", table.delete, 1)
    refused("INVALID_HANDLE", table.delete, 2)
    assert [entry.index for entry in table.all_entries()] == [0, 1, 3]


def test_versions_wrap_at_256():
    table = single("exact", 8)
    for _ in range(256):
        table.delete(table.add([M("exact", 1)], RunAction(0)))
    assert table.add([M("exact", 1)], RunAction(0)) == 0


def test_observers_hear_of_each_change():
    table, observer = single("exact", 8), Mock()
    table.observers.append(observer)
    handle = table.add([M("exact", 1)], RunAction(0))
    entry = table.entry(handle)
    table.modify(handle, RunAction(0))
    table.set_default(RunAction(0))
    table.delete(handle)
    table.clear()
    assert observer.mock_calls == [
        call.added(entry), call.target_changed(entry), call.default_changed(), call.removed(entry), call.cleared()
    ]  # fmt: skip


# Errors


def test_errors_of_entries():
    flows = single("exact", 8)
    refused("BAD_MATCH_KEY", flows.add, [], RunAction(0))
    refused("BAD_MATCH_KEY", flows.add, [M("lpm", 1, 8)], RunAction(0))
    refused("BAD_MATCH_KEY", flows.add, [M("exact", 256)], RunAction(0))
    refused("INVALID_ACTION_NAME", flows.add, [M("exact", 1)], RunAction(7))
    refused("BAD_ACTION_DATA", flows.add, [M("exact", 1)], RunAction(0, (1,)))
    refused("WRONG_TABLE_TYPE", flows.add, [M("exact", 1)], UseMember(0))
    refused("COUNTERS_DISABLED", flows.read_counter, 0)
    refused("METERS_DISABLED", flows.get_meter_rates, 0)
    refused("AGEING_DISABLED", flows.set_timeout, 0, 10)
    refused("NO_DEFAULT_ENTRY", flows.get_default)
    refused("BAD_MATCH_KEY", flows.entry_from_key, [M("exact", 5)])
    refused("INVALID_ACTION_NAME", flows.action, "nothing")


def test_a_full_table():
    flows = single("exact", 8)
    for value in range(64):
        flows.add([M("exact", value)], RunAction(0))
    refused("TABLE_FULL", flows.add, [M("exact", 64)], RunAction(0))
    refused("DUPLICATE_ENTRY", flows.add, [M("exact", 3)], RunAction(0))


def test_const_entries_can_not_change_one_by_one(program):
    table = next(table for table in State(program("exit")).tables if table.name.endswith("first"))
    refused("IMMUTABLE_TABLE_ENTRIES", table.add, [M("exact", 9)], any_action(table))
    refused("IMMUTABLE_TABLE_ENTRIES", table.delete, 0)
    assert len(table) == 1
    table.clear()  # BMv2 does not look there
    assert len(table) == 0


def test_a_table_without_key_takes_no_entries(program):
    table = next(table for table in State(program("exit")).tables if not table.table.key)
    refused("NO_TABLE_KEY", table.add, [], any_action(table))
    refused("DEFAULT_ENTRY_IS_CONST", table.set_default, any_action(table))


# Counters


def test_direct_counters_start_at_zero_with_each_entry(switch):
    running = switch("counters")
    table = next(table for table in running.state.tables if table.name.endswith("flows"))
    handle = running.add(table.name, [7], "MyIngress.send", (1,))
    running.receive(1, bytes(14) + b"\0\7\0\0" + bytes(10))
    assert table.read_counter(handle) == (1, 28)
    table.write_counter(handle, 5, 6)
    assert table.read_counter(handle) == (5, 6)
    table.delete(handle)
    new_handle = running.add(table.name, [7], "MyIngress.send", (1,))
    assert table.read_counter(new_handle) == (0, 0)


# Action profiles


def test_a_profile_without_selector_has_groups_that_no_entry_can_use(program):
    """BMv2 never answers NO_ACTION_PROFILE_SELECTION."""
    state = State(program("action_profile"))
    profile = state.action_profiles[0]
    refused("INVALID_GRP_HANDLE", profile.group, 0)
    table = next(table for table in state.tables if table.profile is profile)
    refused("WRONG_TABLE_TYPE", table.add, [M("exact", 0)], UseGroup(profile.create_group()))
    refused("INVALID_ACTION_NAME", profile.action, "nothing")
