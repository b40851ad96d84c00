"""Numbers as bytes, by the tables of valid and invalid strings in the specification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch.p4runtime.fields import decode, encode, encode_signed
from switchml.errors import ControlError


@pytest.mark.parametrize(
    ("width", "data", "value"),
    [
        (8, b"\x63", 99),
        (16, b"\x00\x63", 99),
        (16, b"\x63", 99),
        (16, b"\x30\x64", 12388),
        (16, b"\x00\x30\x64", 12388),
        (12, b"\x00\x63", 99),
        (12, b"\x63", 99),
        (12, b"\x00\x00\x63", 99),
    ],
)
def test_valid(width, data, value):
    assert decode(data, width, "x") == value


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (8, b"\x01\x63"),
        (8, b""),
        (16, b"\x01\x00\x63"),
        (12, b"\x10\x63"),
        (12, b"\x01\x00\x63"),
        (12, b"\x00\x40\x63"),
    ],
)
def test_invalid(width, data):
    with pytest.raises(ControlError) as refused:
        decode(data, width, "field x")
    assert refused.value.code == "OUT_OF_RANGE" and "field x" in str(refused.value)


@pytest.mark.parametrize(
    ("width", "data", "value"),
    [
        (8, b"\x63", 99),
        (8, b"\x9d", -99),
        (8, b"\xff\x9d", -99),
        (12, b"\xfd\x1d", -739),
        (16, b"\x00\x00", 0),
        (16, b"\x00", 0),
    ],
)
def test_valid_signed(width, data, value):
    assert decode(data, width, "x", signed=True) == value


@pytest.mark.parametrize(("width", "data"), [(8, b"\x00\x9d"), (12, b"\x8d\x1d"), (16, b"")])
def test_invalid_signed(width, data):
    with pytest.raises(ControlError) as refused:
        decode(data, width, "x", signed=True)
    assert refused.value.code == "OUT_OF_RANGE"


def test_shortest_strings():
    assert [encode(value) for value in (0, 99, 255, 256)] == [b"\0", b"c", b"\xff", b"\x01\0"]
    assert [encode_signed(value, 12) for value in (0, 127, 128, -1 & 0xFFF, -128, -739)] == [
        b"\0",
        b"\x7f",
        b"\0\x80",
        b"\xff",
        b"\x80",
        b"\xfd\x1d",
    ]


@given(st.integers(1, 2048), st.data())
def test_there_and_back(width, data):
    value = data.draw(st.integers(0, 2**width - 1))
    assert decode(encode(value), width, "x") == value
    signed = value - 2**width if value >> (width - 1) else value
    assert decode(encode_signed(value, width), width, "x", signed=True) == signed
