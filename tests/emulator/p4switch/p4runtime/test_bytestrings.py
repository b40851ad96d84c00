"""Numbers as bytes, by the tables of valid and invalid strings in the specification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch.p4runtime.fields import decode, encode, encode_signed
from switchml.errors import ControlError


@pytest.mark.parametrize("width, data, value, signed", [
    (8, b"\x63", 99, False), (16, b"\x00\x63", 99, False), (16, b"\x63", 99, False), (16, b"\x30\x64", 12388, False),
    (16, b"\x00\x30\x64", 12388, False), (12, b"\x00\x63", 99, False), (12, b"\x63", 99, False),
    (12, b"\x00\x00\x63", 99, False),
    (8, b"\x63", 99, True), (8, b"\x9d", -99, True), (8, b"\xff\x9d", -99, True), (12, b"\xfd\x1d", -739, True),
    (16, b"\x00\x00", 0, True), (16, b"\x00", 0, True),
])  # fmt: skip
def test_valid(width, data, value, signed):
    assert decode(data, width, "x", signed=signed) == value


@pytest.mark.parametrize("width, data, signed", [
    (8, b"\x01\x63", False), (8, b"", False), (16, b"\x01\x00\x63", False), (12, b"\x10\x63", False),
    (12, b"\x01\x00\x63", False), (12, b"\x00\x40\x63", False),
    (8, b"\x00\x9d", True), (12, b"\x8d\x1d", True), (16, b"", True),
])  # fmt: skip
def test_invalid(width, data, signed):
    with pytest.raises(ControlError) as refused:
        decode(data, width, "field x", signed=signed)
    assert refused.value.code == "OUT_OF_RANGE" and "field x" in str(refused.value)


def test_shortest_strings():
    assert [encode(value) for value in (0, 99, 255, 256)] == [b"\0", b"c", b"\xff", b"\x01\0"]
    shortest = {0: b"\0", 127: b"\x7f", 128: b"\0\x80", -1 & 0xFFF: b"\xff", -128: b"\x80", -739: b"\xfd\x1d"}
    assert {value: encode_signed(value, 12) for value in shortest} == shortest


@given(st.integers(1, 2048), st.data())
def test_there_and_back(width, data):
    value = data.draw(st.integers(0, 2**width - 1))
    assert decode(encode(value), width, "x") == value
    signed = value - 2**width if value >> (width - 1) else value
    assert decode(encode_signed(value, width), width, "x", signed=True) == signed
