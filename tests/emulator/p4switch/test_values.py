"""What stores keep, against plain modular arithmetic."""

from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch.values import (
    mask,
    pad_key,
    padded_width,
    sat_cast,
    stored_in_field,
    stored_in_register,
    two_comp_mod,
    usat_cast,
)

numbers = st.integers(-(1 << 80), 1 << 80)
widths = st.integers(1, 70)


@given(numbers, widths)
def test_two_comp_mod_is_the_signed_number_with_the_same_low_bits(value, width):
    result = two_comp_mod(value, width)
    assert -(1 << width) // 2 <= result <= mask(width) // 2
    assert (result - value) % (1 << width) == 0


@given(numbers, widths)
def test_saturating_casts_give_the_nearest(value, width):
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    assert sat_cast(value, width) == sorted((low, value, high))[1]
    assert usat_cast(value, width) == sorted((0, value, mask(width)))[1]


@given(numbers, widths)
def test_unsigned_fields_and_registers_keep_the_low_bits(value, width):
    assert stored_in_field(value, width, signed=False) == value % (1 << width)
    assert stored_in_register(value, width) == value % (1 << width)


def test_a_signed_field_keeps_what_fits_as_signed_or_as_unsigned():
    """BMv2's quirk: -1 from an int<8> register comes back as 255 and stays 255."""
    assert stored_in_field(-1, 8, signed=True) == -1
    assert stored_in_field(stored_in_register(-1, 8), 8, signed=True) == 255
    assert stored_in_field(256, 8, signed=True) == 0
    assert stored_in_field(-129, 8, signed=True) == 127


def test_a_saturating_field():
    assert stored_in_field(300, 8, signed=False, saturating=True) == 255
    assert stored_in_field(300, 8, signed=True, saturating=True) == 127
    assert stored_in_field(-300, 8, signed=True, saturating=True) == -128


def test_keys_are_padded_to_bytes_part_by_part():
    """The example of JSON_format.md: 12 bits and 2 bits make 3 bytes."""
    assert padded_width([12, 2]) == 24
    assert pad_key(0xABA << 2 | 3, [12, 2]) == 0x0ABA03
