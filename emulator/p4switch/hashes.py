"""The calculations that simple_switch supports: hashes for `hash()`, for checksums and for action selectors.

A `Hash`, called with bytes, returns an unsigned integer. Each calculation of a program has its own Hash, since some
have state (round_robin) or can be re-parameterized at run time (crc16_custom, toeplitz).

All CRCs are one algorithm with parameters (Williams' model: width, polynomial, initial remainder, final xor, and
whether data and remainder are reflected); names and parameters, as in BMv2's crc_map.cpp, are in crcs.csv."""

import csv
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

_M64 = (1 << 64) - 1


@dataclass(frozen=True)
class Crc:
    """Parameters of a CRC of `width` bits (8, 16, 32 or 64)."""

    width: int
    polynomial: int
    initial: int
    final_xor: int
    reflect_data: bool
    reflect_remainder: bool


def _named_crcs() -> dict[str, Crc]:
    lines = Path(__file__).with_name("crcs.csv").read_text().splitlines()
    crcs = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        polynomial, initial, final_xor = (int(row[name], 16) for name in ("polynomial", "initial", "final_xor"))
        is_reflected = row["reflected"] == "1"
        crcs[row["name"]] = Crc(int(row["width"]), polynomial, initial, final_xor, is_reflected, is_reflected)
    return crcs


NAMED_CRCS = _named_crcs()
"""Name → parameters."""


def spelled_crc(name: str) -> Crc | None:
    """The CRC whose parameters are encoded in a name such as "poly_0x104c11db7_init_0x0_xout_0xffffffff_not_rev", or
    None."""
    parts = name.split("_")
    if len(parts) < 2 or parts[0] != "poly" or not re.fullmatch(r"0x1[0-9a-fA-F]+", parts[1]):
        return None
    width = 4 * (len(parts[1]) - 3)
    if width not in (8, 16, 32, 64):
        return None
    rest, values, is_reflected = parts[2:], {"init": 0, "xout": 0}, True
    while rest:
        if rest[0] == "not" and rest[1:2] == ["rev"]:
            is_reflected = False
        elif rest[0] in values and len(rest) > 1 and re.fullmatch(r"0x[0-9a-fA-F]+", rest[1]):
            values[rest[0]] = int(rest[1], 16) & ((1 << width) - 1)
        else:
            return None
        rest = rest[2:]
    return Crc(width, int(parts[1][3:], 16), values["init"], values["xout"], is_reflected, is_reflected)


def _reflect(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


@functools.cache
def crc_table(width: int, polynomial: int) -> tuple[int, ...]:
    """The remainder of each byte value, most significant bit first."""
    top, mask, table = 1 << (width - 1), (1 << width) - 1, []
    for dividend in range(256):
        remainder = dividend << (width - 8)
        for _ in range(8):
            remainder = ((remainder << 1) ^ polynomial if remainder & top else remainder << 1) & mask
        table.append(remainder)
    return tuple(table)


_REFLECTED = tuple(_reflect(byte, 8) for byte in range(256))


def crc(parameters: Crc, data: bytes) -> int:
    """The CRC of `data`."""
    width, mask = parameters.width, (1 << parameters.width) - 1
    table = crc_table(width, parameters.polynomial)
    remainder = parameters.initial
    for byte in data:
        byte = _REFLECTED[byte] if parameters.reflect_data else byte
        remainder = (table[byte ^ (remainder >> (width - 8))] ^ (remainder << 8)) & mask
    return (_reflect(remainder, width) if parameters.reflect_remainder else remainder) ^ parameters.final_xor


def csum16(data: bytes) -> int:
    """The Internet checksum (RFC 1071): ones' complement of the ones' complement sum of 16-bit words; an odd byte is
    padded with a zero byte."""
    if len(data) % 2:
        data += b"\0"
    total = int.from_bytes(data, "big") % 0xFFFF if any(data) else None
    # A non-zero sum folds to 1..0xffff; modulo 0xffff it is the same, with 0 for 0xffff.
    folded = 0 if total is None else total or 0xFFFF
    return folded ^ 0xFFFF


def xor_words(data: bytes, n: int) -> int:
    """The exclusive or of all big-endian words of `n` bytes, the last one padded with zeros."""
    data += bytes(-len(data) % n)
    result = 0
    for start in range(0, len(data), n):
        result ^= int.from_bytes(data[start : start + n], "big")
    return result


def identity(data: bytes) -> int:
    """The first eight bytes (or all, if there are fewer) as a big-endian number."""
    return int.from_bytes(data[:8], "big")


def toeplitz(key: bytes, data: bytes) -> int:
    """The Toeplitz hash (RSS) of `data`, 32 bits; the key's 32-bit words repeat when the data is longer."""
    n_words = len(key) // 4
    words = [int.from_bytes(key[4 * i : 4 * i + 4], "big") for i in range(n_words)]
    data += bytes(-len(data) % 4)
    result = 0
    for i in range(len(data) // 4):
        window = words[i % n_words] << 32 | words[(i + 1) % n_words]
        word = int.from_bytes(data[4 * i : 4 * i + 4], "big")
        for bit in range(32):
            if word >> (31 - bit) & 1:
                result ^= window >> (32 - bit) & 0xFFFFFFFF
    return result


def fnv_mix(data: bytes) -> int:
    """simple_switch's `hash_ex`: FNV-1a over signed bytes with a final mix, 32 bits."""
    mask, value = 0xFFFFFFFF, 2166136261
    for byte in data:
        value = ((value ^ (byte - 256 if byte > 127 else byte)) * 16777619) & mask
    value = (value + (value << 13)) & mask
    value ^= value >> 7
    value = (value + (value << 3)) & mask
    value ^= value >> 17
    return (value + (value << 5)) & mask


_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotate(value: int, n: int) -> int:
    return (value << n | value >> (64 - n)) & _M64


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _M64, 31) * _P1 & _M64


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0 (the xxHash specification, section "XXH64 algorithm description")."""
    at, end = 0, len(data)
    if end >= 32:
        lanes = [(_P1 + _P2) & _M64, _P2, 0, -_P1 & _M64]
        while end - at >= 32:
            for i in range(4):
                lanes[i] = _round(lanes[i], int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little"))
            at += 32
        value = sum(_rotate(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18), strict=True)) & _M64
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _M64
    else:
        value = _P5
    value = (value + end) & _M64
    while end - at >= 8:
        value ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        value = (_rotate(value, 27) * _P1 + _P4) & _M64
        at += 8
    if end - at >= 4:
        value ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _M64
        value = (_rotate(value, 23) * _P2 + _P3) & _M64
        at += 4
    for byte in data[at:]:
        value ^= byte * _P5 & _M64
        value = _rotate(value, 11) * _P1 & _M64
    value = (value ^ value >> 33) * _P2 & _M64
    value = (value ^ value >> 29) * _P3 & _M64
    return value ^ value >> 32


STATELESS: dict[str, Callable[[bytes], int]] = {
    "xxh64": xxh64,
    "bmv2_hash": xxh64,
    "hash_ex": fnv_mix,
    "csum16": csum16,
    "cksum16": csum16,
    "xor16": functools.partial(xor_words, n=2),
    "xor32": functools.partial(xor_words, n=4),
    "identity": identity,
}
"""Functions of bytes without parameters or state, by name."""

STATEFUL = ("toeplitz", "round_robin", "round_robin_consistent")


def is_known(algo: str) -> bool:
    """Whether the algorithm is supported."""
    return algo in STATELESS or algo in STATEFUL or algo in NAMED_CRCS or spelled_crc(algo) is not None


class Hash:
    """The function of one calculation. `crc` holds the parameters of a CRC (None for others) and may be replaced by
    another of the same width; `key` is Toeplitz's, a multiple of 4 bytes. `version` is incremented at each such change.
    Raises ValueError for an unknown name."""

    def __init__(self, algo: str) -> None:
        if not is_known(algo):
            raise ValueError(f"the algorithm {algo!r} is not known")
        self.algo = algo
        self.crc = NAMED_CRCS.get(algo) or spelled_crc(algo)
        self.key = bytes(4)
        self.version = 0
        self._next = 0
        self._seen: dict[bytes, int] = {}

    def __call__(self, data: bytes) -> int:
        if self.crc is not None:
            return crc(self.crc, data)
        if self.algo in STATELESS:
            return STATELESS[self.algo](data)
        if self.algo == "toeplitz":
            return toeplitz(self.key, data)
        if self.algo == "round_robin_consistent" and data in self._seen:
            return self._seen[data]
        number = self._next  # round_robin: the call's number
        self._next += 1
        if self.algo == "round_robin_consistent":
            self._seen[data] = number
        return number

    def set_crc(self, crc: Crc) -> None:
        """Change the parameters of a CRC; values are truncated to its width."""
        mask = (1 << crc.width) - 1
        cut = {name: getattr(crc, name) & mask for name in ("polynomial", "initial", "final_xor")}
        self.crc = replace(crc, **cut)
        self.version += 1

    def set_key(self, key: bytes) -> None:
        """Change Toeplitz's key."""
        if len(key) < 4 or len(key) % 4:
            raise ValueError(f"a Toeplitz key has a multiple of 4 bytes, not {len(key)}")
        self.key = bytes(key)
        self.version += 1
