"""Each arithmetic instruction of the VM by itself, beside what Python's integers say."""

import functools

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.p4switch.engine import opcodes as o
from emulator.p4switch.engine.code import WORDS
from emulator.p4switch.engine.layout import CELL, CONTEXT, CTX, PHV
from emulator.p4switch.engine.raw import address_of, call2
from emulator.p4switch.engine.vm.vm import run
from emulator.p4switch.engine.vm.wide import run_wide
from tests.support.examples import examples

M = (1 << 64) - 1
MAX_LIMBS = 5
AREA = 8 * (MAX_LIMBS + 3)
D, A, B, C, E = (PHV + i * AREA for i in range(5))
"""Offsets of the result and of operands; behind each is room in which nothing may change."""
EDGES = [0, 1, 2, 63, 64, 65, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, M - 1, M]


@numba.njit
def execute(address, frame, pc):
    """Call the VM, which Python can't."""
    return call2(address, frame, pc)


class Machine:
    """A frame and room for one instruction."""

    def __init__(self) -> None:
        self.code = np.zeros((2, WORDS), dtype=np.int32)
        self.context = np.zeros(len(CONTEXT), dtype=np.int64)
        self.context[CTX.code // 8] = self.code.ctypes.data
        self.context[CTX.run_wide // 8] = address_of(run_wide, 3)
        self.run = address_of(run, 2)
        self.cells = np.zeros((PHV + 5 * AREA) // 8 + 8, dtype=np.uint64)
        self.code[1] = [o.END, *[0] * (WORDS - 1)]

    def __call__(self, op: str, *operands: int, n: int = 1, **values: int) -> int:
        """The n limbs of D after one instruction; `values` are A=…, B=…, whatever the limbs."""
        self.cells[:] = 0xA5A5A5A5A5A5A5A5
        self.cells[CELL.context // 8] = self.context.ctypes.data
        for name, value in values.items():
            for i in range(MAX_LIMBS):
                self.cells[globals()[name] // 8 + i] = (value >> 64 * i) & M
        before = self.cells.copy()
        self.code[0] = [o.NAMES.index(op), *operands, *[0] * (WORDS - 1 - len(operands))]
        assert execute(self.run, self.cells.ctypes.data, 0) == 0
        result = sum(int(self.cells[D // 8 + i]) << 64 * i for i in range(n))
        changed = np.flatnonzero(self.cells != before)
        assert all(D // 8 <= at < D // 8 + n for at in changed), f"{op} wrote elsewhere"
        return result


@functools.cache
def the_machine() -> Machine:
    return Machine()


@pytest.fixture
def machine():
    return the_machine()


def signed(value: int, width: int = 64) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def divided(a: int, b: int) -> int:
    """Towards 0."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shift(value: int) -> int:
    return min(max(signed(value), 0), 1 << 12)


SCALAR = {
    "MOV": lambda a, b, m: a,
    "ADD": lambda a, b, m: a + b,
    "SUB": lambda a, b, m: a - b,
    "MUL": lambda a, b, m: a * b,
    "AND": lambda a, b, m: a & b,
    "OR": lambda a, b, m: a | b,
    "XOR": lambda a, b, m: a ^ b,
    "NOT": lambda a, b, m: ~a,
    "ADDM": lambda a, b, m: (a + b) & m,
    "SUBM": lambda a, b, m: (a - b) & m,
    "SHL": lambda a, b, m: a << shift(b),
    "SHRU": lambda a, b, m: a >> shift(b),
    "SHRS": lambda a, b, m: signed(a) >> shift(b),
    "DIVS": lambda a, b, m: divided(signed(a), signed(b)),
    "REMS": lambda a, b, m: signed(a) - divided(signed(a), signed(b)) * signed(b) if b else 0,
    "DIVU": lambda a, b, m: a // b if b else 0,
    "REMU": lambda a, b, m: a % b if b else 0,
    "EQ": lambda a, b, m: a == b,
    "NE": lambda a, b, m: a != b,
    "LTS": lambda a, b, m: signed(a) < signed(b),
    "LES": lambda a, b, m: signed(a) <= signed(b),
    "LTU": lambda a, b, m: a < b,
    "LEU": lambda a, b, m: a <= b,
    "SEL": lambda a, b, m: b if a else m,
}
"""d a b m."""

WIDE = {
    "WADD": lambda a, b, n: a + b,
    "WSUB": lambda a, b, n: a - b,
    "WMUL": lambda a, b, n: a * b,
    "WSHL": lambda a, b, n: a << shift(b),
}
"""d a b n."""
LANES = {
    "VAND": lambda a, b: a & b,
    "VOR": lambda a, b: a | b,
    "VXOR": lambda a, b: a ^ b,
    "VADD": lambda a, b: a + b,
    "VSUB": lambda a, b: a - b,
    "VMUL": lambda a, b: a * b,
}

words = st.sampled_from(EDGES) | st.integers(0, M)
wides = st.lists(words, min_size=MAX_LIMBS, max_size=MAX_LIMBS).map(
    lambda limbs: sum(limb << 64 * i for i, limb in enumerate(limbs))
)
counts = st.integers(1, MAX_LIMBS)
shifts = st.integers(0, 64 * MAX_LIMBS + 2) | st.sampled_from([M, 1 << 63, 0, 64, 128])
tried = examples(150)


def low(value: int, n: int) -> int:
    return value & ((1 << 64 * n) - 1)


@pytest.mark.slow(keep=8)
@pytest.mark.parametrize("op", SCALAR)
def test_one_cell(machine, op):
    @tried
    @given(words, words | shifts, words, st.booleans())
    def check(a, b, m, same):
        b = a if same else b
        assert machine(op, D, A, B, C, A=a, B=b, C=m) == SCALAR[op](a, b, m) & M

    check()


@given(words, st.integers(1, 63), words)
@tried
def test_parts_and_signs(a, s, m):
    machine = the_machine()
    assert machine("SLICE", D, A, s, B, A=a, B=m) == (a >> s) & m
    assert machine("SEXT", D, A, s, A=a) == signed(a, s) & M


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("op", WIDE)
def test_many_limbs(machine, op):
    @tried
    @given(wides, wides, shifts, counts)
    def check(a, b, by, n):
        other = by if op == "WSHL" else b
        expected = low(WIDE[op](low(a, n), other if op == "WSHL" else low(b, n), n), n)
        assert machine(op, D, A, B, n, n=n, A=a, B=other) == expected

    check()


@given(wides, counts, counts, st.booleans(), shifts)
@tried
def test_other_numbers_of_limbs(a, n, k, is_signed, by):
    machine = the_machine()
    value = signed(a, 64 * k) if is_signed else low(a, k)
    assert machine("WEXT", D, n, A, k, is_signed, n=n, A=a) == low(value, n)
    assert machine("WSHR", D, n, A, k, B, is_signed, n=n, A=a, B=by) == low(value >> shift(by), n)


@given(wides, wides, counts, st.data(), st.booleans())
@tried
def test_choices_and_signs_of_many_limbs(a, b, n, data, same):
    machine = the_machine()
    b = a if same else b
    width = data.draw(st.sampled_from(range(64, 64 * n + 1, 64)) | st.integers(1, 64 * n))
    assert machine("WSEXT", D, A, width, n, n=n, A=a) == low(signed(a, width), n)
    left, right = signed(a, 64 * n), signed(b, 64 * n)
    assert machine("WCMP", D, A, B, n, A=a, B=b) == ((left > right) - (left < right)) & M
    assert machine("WNOT", D, A, n, n=n, A=a) == low(~a, n)
    assert machine("WMOV", D, A, n, n=n, A=a) == low(a, n)
    for condition in (0, 1 << 63):
        assert machine("WSEL", D, C, A, B, n, n=n, A=a, B=b, C=condition) == low(a if condition else b, n)


def test_results_in_the_place_of_operands(machine):
    a, b = 0x123456789ABCDEF0 << 190 | 77, M << 64 | 5
    machine.cells[:] = 0
    for op, expected in {"WADD": a + b, "WSUB": a - b}.items():
        assert machine(op, D, D, B, 4, n=4, D=a, B=b) == low(expected, 4)
        assert machine(op, D, A, D, 4, n=4, A=a, D=b) == low(expected, 4)
    assert machine("WSHL", D, D, B, 4, n=4, D=a, B=70) == low(a << 70, 4)
    assert machine("WSHR", D, 4, D, 4, B, 1, n=4, D=a, B=70) == low(signed(a, 256) >> 70, 4)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("op", LANES)
def test_lanes(machine, op):
    @tried
    @given(wides, wides, counts)
    def check(a, b, n):
        lanes = [LANES[op](a >> 64 * i & M, b >> 64 * i & M) & M for i in range(n)]
        assert machine(op, D, A, B, n, n=n, A=a, B=b) == sum(lane << 64 * i for i, lane in enumerate(lanes))

    check()


@given(wides, words, counts)
@tried
def test_lanes_and_one_number(a, m, n):
    machine = the_machine()
    ones = sum(1 << 64 * i for i in range(n))
    assert machine("VANDC", D, A, B, n, n=n, A=a, B=m) == low(a, n) & (ones * m)
    assert machine("VFILL", D, B, n, n=n, B=m) == ones * m


@given(wides, st.sampled_from([1, 2, 4, 8]), counts)
@tried
def test_lanes_of_fields(a, size, n):
    """Fields are big-endian, one behind the other."""
    machine = the_machine()
    data = a.to_bytes(8 * MAX_LIMBS, "little")
    fields = [int.from_bytes(data[size * i :][:size], "big") for i in range(n)]
    lanes = sum(field << 64 * i for i, field in enumerate(fields))
    assert machine("VLD", D, A, size, n, n=n, A=a) == lanes
    n_limbs = -(-size * n // 8)
    stored = machine("VST", D, size, A, n, n=n_limbs, A=lanes, D=0)
    assert stored.to_bytes(8 * n_limbs, "little")[: size * n] == data[: size * n]


def test_every_instruction_on_numbers_is_here():
    names, at = o.NAMES, o.NAMES.index
    expected = {*names[at("MOV") : at("LD8")], *names[at("WEXT") : at("VREG")]}
    others = "SLICE SEXT WEXT WSHR WSEXT WCMP WNOT WMOV WSEL VANDC VFILL VLD VST"
    assert expected == {*SCALAR, *WIDE, *LANES, *others.split()}
