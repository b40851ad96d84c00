"""Parsers, values and state in the packet path: what each program of tests/programs must do, worked out by hand."""

import json
import logging
import zlib
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.p4switch.engine.engine import CompiledEngine
from emulator.p4switch.hashes import csum16
from emulator.p4switch.interpreter.interpreter import Interpreter
from emulator.p4switch.interpreter.packet import FieldPool, Packet
from emulator.p4switch.interpreter.parser import Parser
from emulator.p4switch.interpreter.primitives import Primitives
from emulator.p4switch.program.ir import MatchParam
from emulator.p4switch.program.loader import loader
from emulator.p4switch.state.action_profiles import RunAction, UseGroup
from emulator.p4switch.state.state import State
from emulator.p4switch.switch import Switch
from emulator.p4switch.values import two_comp_mod as signed

ETHERNET = bytes.fromhex("0102030405060708090a0b0c0d0e")


def send(running, frame, port=1):
    """The one frame that comes back."""
    [(out, data)] = running.receive(port, frame)
    assert out == port
    return data


# Parser


@pytest.mark.parametrize(
    ("frame", "code", "valid"),
    [  # error: 0 none, 1 too short, 3 version, 4 length; valid: 1 ethernet, 2 first, 4 second
        ("45 0000", 0, 3),
        ("45 0001 00000000", 0, 7),
        ("45 0100 000000", 1, 3),
        ("45 0009", 0, 3),  # no transition fits: BMv2's parser just ends
        ("55 0001 00000000", 3, 3),
        ("44 0001 00000000", 4, 3),
        ("45 00", 1, 1),
    ],
)
def test_parser_errors_do_not_drop(switch, frame, code, valid):
    data = ETHERNET + bytes.fromhex(frame)
    assert send(switch("parser_errors"), data) == bytes([code, valid]) + data


def test_a_frame_shorter_than_its_first_header(switch):
    assert send(switch("parser_errors"), b"abc") == b"\1\0abc"
    assert send(switch("parser_errors"), b"") == b"\1\0"


def label(n, bottom=0):
    return (n << 12 | bottom << 8 | 9).to_bytes(4, "big")


def stack(running, kind, *labels):
    """What comes back: (index of the last label, overflow, the labels' numbers, the rest)."""
    frame = send(running, ETHERNET[:12] + kind.to_bytes(2, "big") + b"".join(labels))
    return frame[11], frame[10], frame[14:]


def in_front(data):
    """The first label has the class 7."""
    return bytes([data[0], data[1], data[2] | 0x0E, data[3]])


def test_stacks_push_and_pop(switch):
    running = switch("stacks")
    one, two, three = label(1), label(2), label(3, 1)
    assert stack(running, 0, one, two, three) == (2, 0x0B, in_front(one) + two + three)
    assert stack(running, 1, one, three)[2] == bytes.fromhex("abcdee40") + one + three
    assert stack(running, 2, one, two, three)[2] == in_front(two) + three
    assert stack(running, 4, one, two, three)[2] == in_front(three)
    assert stack(running, 3, one, two, three)[2] == one + two  # pushed elements are invalid, the third falls out
    assert stack(running, 5, one, three)[2] == in_front(three) + one


def test_a_stack_that_overflows(switch):
    labels = [label(n) for n in range(5)]
    last, overflow, rest = stack(switch("stacks"), 0, *labels)
    assert (last, overflow) == (3, 0xEE)
    assert rest == in_front(labels[0]) + b"".join(labels[1:])


def test_one_member_of_a_union_is_valid(switch):
    running = switch("unions")
    head = ETHERNET[:12]
    assert send(running, head + b"\0\1" + b"ab" + b"!") == head + b"\0\1" + b"ab" + b"\1"
    assert send(running, head + b"\1\1" + b"ab" + b"!") == head + b"\1\1" + bytes.fromhex("0123456789abcdef") + b"\2"
    assert send(running, head + b"\2\2" + b"12345678" + b"!") == head + b"\2\2" + bytes.fromhex("beef") + b"\1"
    assert send(running, head + b"\3\1" + b"ab" + b"!") == head + b"\3\1" + b"\0"


def with_stale_short(program):
    """The program "unions", whose packets of kind 2 add the short header without setting its field."""
    root = json.loads(program("unions").text)
    for action in root["actions"]:
        calls = action["primitives"]
        for at, call in enumerate(calls):
            if call["op"] == "add_header" and call["parameters"][0]["value"] == "either.s":
                calls[at : at + 2] = [{**call, "op": "add_header_fast"}]
    return loader.loads(json.dumps(root))


@pytest.mark.parametrize("engine", [Interpreter, CompiledEngine])
@pytest.mark.parametrize(("stale_fields", "left"), [(True, b"ab"), (False, b"\0\0")])
def test_fields_that_earlier_packets_left(program, engine, stale_fields, left):
    """BMv2 takes a packet's fields from the last packet that has gone, and sets metadata to 0 only."""
    running = Switch(with_stale_short(program), engine=partial(engine, stale_fields=stale_fields))
    head = ETHERNET[:12]
    assert send(running, head + b"\0\1" + b"ab" + b"!") == head + b"\0\1" + b"ab" + b"\1"
    assert send(running, head + b"\0\0" + b"!") == head + b"\0\0" + b"\0"
    for _ in range(2):
        assert send(running, head + b"\2\0" + b"!") == head + b"\2\0" + left + b"\1"


def test_copies_take_fields_of_their_own(program):
    """A copy has the valid headers of its packet, and in the others what was in the fields that it took."""
    pool = FieldPool(program("unions"))
    one = Packet(program("unions"), b"", 0, pool)
    named = {header.name: header.index for header in program("unions").headers}
    valid, invalid = named["eth"], named["last"]
    one.values[valid][0], one.values[invalid][0] = 5, 6
    one.set_valid(valid)
    copy = one.copy_with_headers()
    assert (copy.values[valid][0], copy.values[invalid][0]) == (5, 0)
    pool.give(one)
    pool.give(copy)
    last = Packet(program("unions"), b"", 0, pool)
    assert last.values is copy.values and Packet(program("unions"), b"", 0, pool).values is one.values


def test_varbit_fields(switch):
    running = switch("varbit")
    head, bad = ETHERNET, ETHERNET[:12] + b"\xff\xff"
    assert send(running, head + b"\x10" + b"\2ab" + b"rest") == head + b"\x10" + b"\2ab" + b"\3ab" + b"rest"
    assert send(running, head + b"\x10" + b"\4ab" + b"rest") == head + b"\x10" + b"rest"
    assert send(running, head + b"\0" + b"\2" + b"rest") == head + b"\0" + b"\2" + b"\3" + b"rest"
    assert send(running, head + b"\x11" + b"\1abc") == bad + b"\x11" + b"\1abc"  # not whole bytes
    assert send(running, head + b"\x88" + b"\1" + bytes(20)) == bad + b"\x88" + b"\1" + bytes(20)  # over 128 bits
    assert send(running, head + b"\x20" + b"\1ab") == bad + b"\x20" + b"\1ab"  # too short


@pytest.mark.parametrize(("length", "error"), [(0xFFFFFFF8, "ParserInvalidArgument"), (0x7FFFFFF8, "PacketTooShort")])
def test_a_length_beyond_a_c_int(program, length, error):
    """As from (ihl - 5) * 32 with ihl 4, seen on simple_switch."""
    root = json.loads(program("varbit").text)
    for state in root["parsers"][0]["parse_states"]:
        for op in state["parser_ops"]:
            if op["op"] == "extract_VL":
                op["parameters"][1]["value"] = {"type": "hexstr", "value": hex(length)}
    changed = loader.loads(json.dumps(root))
    state, packet = State(changed), Packet(changed, ETHERNET + b"\0" + bytes(20))
    Parser(changed.parsers[0], packet, state, Primitives(state)).run()
    assert packet.parser_error == changed.errors[error]


def test_lookahead_and_advance(switch):
    running = switch("lookahead")
    head = ETHERNET[:12] + b"\0\0"
    output = send(running, head + b"\1\1" + b"\5\2ab" + b"\0zzz")
    assert output == head + b"\5\2ab" + b"\0\1\1\5"
    assert send(running, head + b"\7\2xx" + b"\x80zzz") == head + b"\x80\7\2x"
    assert send(running, head + b"\7\xffxx")[12:14] == b"\xff\xff"


def test_a_value_set_decides(switch):
    running = switch("value_set")
    frame = ETHERNET + b"abcd"
    assert send(running, frame) == frame
    running.state.parse_vsets[0].add(0x0D0E)
    assert send(running, frame) == ETHERNET + b"\x12\x34cd"


# Values


def test_registers_by_width_and_what_int_registers_lose(switch):
    running = switch("registers")

    def step(index, value, small, wide=0):
        bits = index << 176 | value << 144 | small << 139 | wide
        frame = send(running, ETHERNET + bits.to_bytes(26, "big"))
        return int.from_bytes(frame[14:], "big")

    step(3, 0xFFFFFFFB, 31, (1 << 136) - 1)
    result = step(3, 0xFFFFFFFB, 31, 2)
    assert result >> 144 & 0xFFFFFFFF == 0xFFFFFFF6
    assert result >> 139 & 31 == 30
    assert result & (1 << 136) - 1 == 1
    # -5 < 0 is false when it comes from a register of int<32>, and true when a bit<32> is cast
    assert result >> 136 & 7 == 0b010


def test_a_register_index_out_of_range_does_nothing(switch):
    running = switch("registers")
    before = running.state.registers[0].read_all()
    frame = send(running, ETHERNET + (999 << 176 | 5 << 144).to_bytes(26, "big"))
    assert int.from_bytes(frame[18:22], "big") == 5  # what was to be read stays as it was: 0
    assert running.state.registers[0].read_all() == before


def bits_of(width):
    return st.integers(0, (1 << width) - 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)  # the program has no state
@given(bits_of(32), bits_of(32), bits_of(16), bits_of(16), bits_of(7), bits_of(72), bits_of(72), st.booleans())
def test_arithmetic_is_modular(switch, a, b, p, q, s, w, x, flag):
    running = switch("arithmetic")
    bits = a
    for value, width in ((b, 32), (p, 16), (q, 16), (s, 7), (int(flag), 1), (w, 72), (x, 72)):
        bits = bits << width | value
    frame = send(running, ETHERNET + bits.to_bytes(31, "big"))
    out = int.from_bytes(frame[45:], "big")
    sp, sq = signed(p, 16), signed(q, 16)
    compared = (a & 0xFF) << 8
    for bit, is_so in enumerate((a < b, a <= b, sp < sq, sp >= sq, w > x or w == 0, a != b and p != q)):
        compared |= is_so << bit
    expected = [
        (a + b, 32), (a - b, 32), (a * b, 32), (a & b, 32), (a | b, 32), (a ^ b, 32), (~a, 32), (-a, 32),
        (a << 7, 32), (a >> 7, 32), (a << s, 32), (a >> s, 32), (sp + sq, 16), (sp - sq, 16), (sp * sq, 16),
        (-sp, 16), (sp >> 3, 16), (sp >> s, 16), (sp, 32), (a, 8), (a >> 8, 16),
        ((a & 0xFFFF) << 48 | b << 16 | a >> 16, 64), (w + x, 72), (w - x, 72), (w * x, 72), (w << s, 72),
        (w >> s, 72), (a if flag and a > b else b, 32), (50000 // 7, 16), (50000 % 7, 16), (compared, 16),
    ]  # fmt: skip
    for value, width in reversed(expected):
        assert out & ((1 << width) - 1) == value & ((1 << width) - 1)
        out >>= width


# Checksums and hashes


def ipv4(checksum, ttl=64, options=b""):
    header = bytes.fromhex("45000020000100000011") + checksum.to_bytes(2, "big") + bytes.fromhex("0a0000010a000002")
    return header[:8] + bytes([ttl]) + header[9:] + options


def test_checksums_are_verified_and_updated_with_payload(switch):
    running = switch("checksums")
    right = csum16(ipv4(0))
    udp = bytes.fromhex("1234567800090000")
    for checksum, error in ((right, 0), (right ^ 1, 1)):
        frame = send(running, ETHERNET[:12] + b"\x08\0" + ipv4(checksum) + udp + b"x")
        header, datagram = frame[14:34], frame[34:]
        assert (header[1] & 1, header[8]) == (error, 63)
        assert csum16(header) == 0
        pseudo = header[12:20] + bytes([0, 17]) + datagram[4:6]
        assert csum16(pseudo + datagram) == 0


def test_hashes_see_the_fields_bit_after_bit(switch):
    frame = send(switch("hashes"), ETHERNET + bytes.fromhex("1122334455677889"))
    data = bytes.fromhex("1122334455677889")
    assert frame[22:26] == frame[26:30] == zlib.crc32(data).to_bytes(4, "big")
    assert frame[34:42] == bytes(8)  # identity: a max of 2^64 does not fit 64 bits, is 0, and counts as 1
    assert frame[42:44] == csum16(data).to_bytes(2, "big")
    odd = (0x556 << 32 | 0x11223344).to_bytes(6, "big")  # 44 bits, padded at the end
    shifted = (int.from_bytes(odd, "big") << 4).to_bytes(6, "big")
    assert int.from_bytes(frame[46:48], "big") == 1000 + zlib.crc32(shifted) % 37


# Tables in the path


def test_a_key_field_of_an_invalid_header_is_0(switch):
    running = switch("mixed_keys")
    running.add("MyIngress.zero", [(0, 16), 0], "MyIngress.rule", (7,))
    assert send(running, ETHERNET + bytes(6))[18:20] == b"\0\7"
    tagged = ETHERNET[:12] + b"\x81\0" + b"\0\0\0\0" + bytes(6)
    assert send(running, tagged)[22:24] == b"\0\0"


def test_a_selector_spreads_by_hash_and_an_empty_group_ends_the_pipeline(switch):
    running = switch("action_selector")
    table = running.state.table("MyIngress.paths")
    profile, send_action = table.profile, table.action("MyIngress.send")
    group = profile.create_group()
    for mark in (1, 2, 3):
        profile.add_to_group(profile.add_member(RunAction(send_action, (1, mark))), group)
    table.add([MatchParam("lpm", 0, 0)], UseGroup(group))
    marks = set()
    for flow in range(20):
        frame = ETHERNET + bytes(2) + flow.to_bytes(4, "big") + bytes(6)
        chosen = {send(running, frame)[24:26] for _ in range(2)}
        assert len(chosen) == 1
        marks |= chosen
    assert marks == {b"\0\1", b"\0\2", b"\0\3"}
    for member in list(profile.group(group).members):
        profile.remove_from_group(member, group)
    assert running.receive(1, ETHERNET + bytes(12)) == [(0, ETHERNET + bytes(12))]


def test_meters_colour_packets(switch):
    running = switch("meters")
    running.add("MyIngress.flows", [5], "MyIngress.send", (1,))
    running.state.table("MyIngress.flows").set_meter_rates(0, [(0.0, 20), (0.0, 40)])
    running.state.meter("MyIngress.by_index").set_rates(3, [(0.0, 1), (0.0, 2)])
    frame = ETHERNET + b"\0\5\0\3\0\0"
    assert [send(running, frame)[18:20] for _ in range(3)] == [b"\0\0", b"\1\1", b"\2\2"]


def test_counters_count_packets_and_bytes(switch):
    running = switch("counters")
    for index in (4, 4, 99):
        running.receive(1, ETHERNET + b"\0\0" + index.to_bytes(2, "big") + b"xx")
    assert running.state.counter("MyIngress.by_index").read(4) == (2, 40)


def test_log_msg_writes_decimal_numbers(switch, caplog):
    with caplog.at_level(logging.INFO, "switchml.bmv2"):
        switch("log_msg").receive(1, ETHERNET)
    assert caplog.messages == ["parsed type 3342", "in ingress", "port 1 type 3342 sum 3343"]


def test_random_stays_in_its_bounds_and_a_seed_repeats_it(switch):
    frames = [switch("random").receive(1, ETHERNET + bytes(40)) for _ in range(2)]
    assert frames[0] == frames[1]


@pytest.mark.parametrize("program", ["agg_wide_64", "agg_unrolled_64", "agg_wide_256", "agg_unrolled_256"])
def test_aggregation_sums_lanes_modulo_2_to_the_32(switch, program):
    """Slot 9, senders 1, 2 and 4; the last one of them gets the sum, a second packet of one sender is dropped."""
    running, rng = switch(program), np.random.default_rng(1)
    lanes = rng.integers(0, 1 << 32, (3, int(program.rpartition("_")[2])), dtype=np.uint32)
    lanes[0, :2] = 0xFFFFFFFF, 0x80000000

    def packet(sender):
        head = ETHERNET[:12] + bytes.fromhex("88b5") + b"\0\x09" + sender.to_bytes(2, "big") + b"\0\7" + b"\0\0"
        return head + lanes[sender.bit_length() - 1].astype(">u4").tobytes()

    for _ in range(2):
        assert running.receive(5, packet(1)) == []
        assert running.receive(6, packet(1)) == []
        assert running.receive(6, packet(4)) == []
        [(port, frame)] = running.receive(7, packet(2))
        assert port == 7
        assert np.array_equal(np.frombuffer(frame[22:], ">u4"), lanes.sum(axis=0, dtype=np.uint32))
