"""Calculations, against published check values and other implementations."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch import hashes

CHECK = b"123456789"

CHECK_VALUES = {
    # From the catalogue of parametrised CRC algorithms and crcmod's documentation.
    "crc_8": 0xF4, "crc_8_darc": 0x15, "crc_8_i_code": 0x7E, "crc_8_itu": 0xA1, "crc_8_maxim": 0xA1,
    "crc_8_rohc": 0xD0, "crc_8_wcdma": 0x25, "crc_16": 0xBB3D, "crc_16_buypass": 0xFEE8, "crc_16_dds_110": 0x9ECF,
    "crc_16_dect": 0x007E, "crc_16_dnp": 0xEA82, "crc_16_en_13757": 0xC2B7, "crc_16_genibus": 0xD64E,
    "crc_16_maxim": 0x44C2, "crc_16_mcrf4xx": 0x6F91, "crc_16_riello": 0x63D0, "crc_16_t10_dif": 0xD0DB,
    "crc_16_teledisk": 0x0FB3, "crc_16_usb": 0xB4C8, "x_25": 0x906E, "xmodem": 0x31C3, "modbus": 0x4B37,
    "kermit": 0x2189, "crc_ccitt_false": 0x29B1, "crc_aug_ccitt": 0xE5CC, "crc_32": 0xCBF43926,
    "crc_32_bzip2": 0xFC891918, "crc_32c": 0xE3069283, "crc_32d": 0x87315576, "crc_32_mpeg": 0x0376E6E7,
    "posix": 0x765E7680, "crc_32q": 0x3010BF7F, "jamcrc": 0x340BC6D9, "xfer": 0xBD0BE338,
    "crc_64_we": 0x62EC59E3F1A4F00A,
}  # fmt: skip


@pytest.mark.parametrize(("algo", "value"), CHECK_VALUES.items())
def test_check_values(algo, value):
    assert hashes.Hash(algo)(CHECK) == value


@given(st.binary(max_size=100))
def test_crc32_is_zlibs(data):
    assert hashes.Hash("crc32")(data) == hashes.Hash("crc32_custom")(data) == zlib.crc32(data)


@given(st.binary(max_size=60))
def test_csum16_is_the_internet_checksum(data):
    padded = data + b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(padded[i : i + 2], "big") for i in range(0, len(padded), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    assert hashes.csum16(data) == total ^ 0xFFFF


@pytest.mark.parametrize(
    ("data", "value"),
    [  # from the xxHash project's sanity checks and documentation
        (b"", 0xEF46DB3751D8E999),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64(data, value):
    assert hashes.xxh64(data) == value


def test_toeplitz_is_rss():
    """The verification suite for RSS over IPv4, without and with TCP ports."""
    key = bytes.fromhex("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa")
    address = bytes([66, 9, 149, 187, 161, 142, 100, 80])
    assert hashes.toeplitz(key, address) == 0x323E8FC2
    assert hashes.toeplitz(key, address + (2794).to_bytes(2, "big") + (1766).to_bytes(2, "big")) == 0x51CCC178


def test_xor_and_identity():
    assert hashes.Hash("xor16")(b"\x12\x34\x56") == 0x1234 ^ 0x5600
    assert hashes.Hash("xor32")(b"\x12\x34\x56\x78\x9a") == 0x12345678 ^ 0x9A000000
    assert hashes.Hash("identity")(bytes(range(1, 11))) == 0x0102030405060708
    assert hashes.Hash("identity")(b"\x01\x02") == 0x0102


def test_crcs_can_be_spelled_out():
    spelled = hashes.Hash("poly_0x104c11db7_init_0xffffffff_xout_0xffffffff")
    assert spelled(CHECK) == zlib.crc32(CHECK)
    assert hashes.Hash("poly_0x11021_not_rev")(CHECK) == 0x31C3
    for wrong in ("poly_0x21021", "poly_0x11021_lsb", "poly", "random", ""):
        assert not hashes.is_known(wrong)


def test_round_robin_counts_calls_and_the_consistent_one_remembers():
    plain, consistent = hashes.Hash("round_robin"), hashes.Hash("round_robin_consistent")
    assert [plain(b"a"), plain(b"a"), plain(b"b")] == [0, 1, 2]
    assert [consistent(b"a"), consistent(b"a"), consistent(b"b"), consistent(b"a")] == [0, 0, 1, 0]


def test_parameters_can_change():
    crc16 = hashes.Hash("crc16_custom")
    crc16.set_crc(hashes.Crc(16, 0x1021, 0xFFFF, 0, False, False))
    assert (crc16(CHECK), crc16.version) == (0x29B1, 1)
    with pytest.raises(ValueError, match="multiple of 4"):
        hashes.Hash("toeplitz").set_key(b"abc")
