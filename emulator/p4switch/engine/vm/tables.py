"""The VM's table lookup, registers, counters, meters and random numbers; `lookup` writes the structures read here."""

from emulator.p4switch.engine.layout import CELL, CTX, offsets
from emulator.p4switch.engine.raw import arg, ld8, ld32, ld64, load_double, ltu, shr, st32, st64, val
from switchml.runtime.jit import kernel

TABLE_WORDS = ("groups", "n_groups", "rows", "n_rows", "default")
"""Words of a table in the directory: its hash tables (address, how many); rows that are tried one by one (address, how
many); the default record."""
TABLE = offsets("Table", TABLE_WORDS)
TABLE_BYTES = 8 * len(TABLE_WORDS)
GROUP_WORDS = ("mask", "slots", "slot_mask", "first_rank")
"""Words of a hash table: address of the mask's limbs; address and number - 1 of its slots; the best rank in it. A slot:
rank + 1 (0: free), record, the key's limbs."""
GROUP = offsets("Group", GROUP_WORDS)
GROUP_BYTES = 8 * len(GROUP_WORDS)
RECORD_WORDS = ("action", "args", "next", "counter", "last_hit", "n_choices", "choices", "index")
"""Words of a record: where its action's code is (0: none), address of the arguments, where code continues, addresses of
its counter and of the time of its last hit, members of its group (0: it is no group) and where their records are
listed, index of the entry."""
RECORD = offsets("Record", RECORD_WORDS)
_MIX = -0x61C8864680B583EB
"""2^64 divided by the golden ratio (Knuth's multiplicative hashing)."""


@kernel
def hash_limbs(key: int, mask: int, n: int) -> int:
    """A hash of a key under a mask: 63 bits."""
    mixed = 0
    for i in range(0, 8 * n, 8):
        mixed = (mixed ^ (ld64(key + i) & ld64(mask + i))) * _MIX
        mixed ^= shr(mixed, 29)
    return mixed & 0x7FFFFFFFFFFFFFFF


@kernel
def same_under_mask(key: int, mask: int, value: int, n: int) -> bool:
    """Whether key & mask is a value, n limbs each."""
    for i in range(0, 8 * n, 8):  # noqa: SIM110 (compiled: no generators)
        if ld64(key + i) & ld64(mask + i) != ld64(value + i):
            return False
    return True


@kernel
def _find(table: int, key: int, n: int) -> int:
    """The record of the best entry in the hash tables, or 0. They are ordered by the best rank in each."""
    best, record = 0x7FFFFFFFFFFFFFFF, 0
    group = ld64(table + TABLE.groups)
    slot_bytes = 16 + 8 * n
    for _ in range(ld64(table + TABLE.n_groups)):
        if ld64(group + GROUP.first_rank) > best:
            break
        mask, slots, slot_mask = ld64(group + GROUP.mask), ld64(group + GROUP.slots), ld64(group + GROUP.slot_mask)
        at = hash_limbs(key, mask, n) & slot_mask
        while True:
            slot = slots + at * slot_bytes
            rank = ld64(slot)
            if rank == 0:
                break
            if same_under_mask(key, mask, slot + 16, n):
                if rank - 1 < best:
                    best, record = rank - 1, ld64(slot + 8)
                break
            at = (at + 1) & slot_mask
        group += GROUP_BYTES
    return record


@kernel
def _at_most(a: int, b: int, n: int) -> bool:
    """Whether a <= b, n limbs each, unsigned."""
    for i in range(8 * (n - 1), -8, -8):
        left, right = ld64(a + i), ld64(b + i)
        if left != right:
            return ltu(left, right) == 1
    return True


@kernel
def _fits(row: int, key: int) -> bool:
    """Whether a key fits a row: record, how many fields, then of each (is range, limbs, value, mask or upper end)."""
    at = row + 16
    for _ in range(ld64(row + 8)):
        is_range, n = ld64(at), ld64(at + 8)
        value, extra = at + 16, at + 16 + 8 * n
        if is_range:
            if not _at_most(value, key, n) or not _at_most(key, extra, n):
                return False
        elif not same_under_mask(key, extra, value, n):
            return False
        key += 8 * n
        at = extra + 8 * n
    return True


@kernel
def look_up(frame: int, number: int, key: int, n: int) -> None:
    """LOOKUP."""
    table = ld64(ld64(frame + CELL.context) + CTX.tables) + number * TABLE_BYTES
    record = _find(table, key, n) if ld64(table + TABLE.n_groups) else 0
    row = ld64(table + TABLE.rows)
    for _ in range(ld64(table + TABLE.n_rows)):
        if _fits(row + 8, key):
            record = ld64(row + 8)
            break
        row += ld64(row)
    if record == 0:
        st64(frame + CELL.entry, ld64(table + TABLE.default))
        st64(frame + CELL.hit, 0)
        return
    st64(frame + CELL.entry, record)
    st64(frame + CELL.hit, 1)
    counter = ld64(record + RECORD.counter)
    st64(counter, ld64(counter) + 1)
    st64(counter + 8, ld64(counter + 8) + ld64(frame + CELL.ingress_length))
    st64(ld64(record + RECORD.last_hit), ld64(frame + CELL.now))


@kernel
def value_in_set(key: int, n: int, cover: int, words: int) -> bool:
    """VSET: `words` hold the address of the values and how many there are."""
    value = ld64(words)
    for _ in range(ld64(words + 8)):
        same = True
        for i in range(0, 8 * n, 8):
            if (ld64(key + i) ^ ld64(value + i)) & ld64(cover + i):
                same = False
        if same:
            return True
        value += 8 * n
    return False


@kernel
def read_register(frame: int, at: int) -> None:
    """REG: 0 beyond the array."""
    to, words, index, n = frame + arg(at, 1), frame + arg(at, 2), val(frame, at, 3), arg(at, 4)
    inside = ltu(index, ld64(words + 8)) == 1
    cell = ld64(words) + index * ld64(words + 16)
    for i in range(0, 8 * n, 8):
        st64(to + i, ld64(cell + i) if inside else 0)


@kernel
def write_register(frame: int, at: int) -> None:
    """REGW: nothing beyond the array."""
    words, index, n, source = frame + arg(at, 1), val(frame, at, 2), arg(at, 3), frame + arg(at, 4)
    if ltu(index, ld64(words + 8)):
        cell, top = ld64(words) + index * ld64(words + 16), 8 * (n - 1)
        for i in range(0, top, 8):
            st64(cell + i, ld64(source + i))
        st64(cell + top, ld64(source + top) & ld64(words + 24))


@kernel
def count(words: int, index: int, n_bytes: int) -> None:
    """COUNT."""
    if ltu(index, ld64(words + 8)):
        cell = ld64(words) + 16 * index
        st64(cell, ld64(cell) + 1)
        st64(cell + 8, ld64(cell + 8) + n_bytes)


@kernel
def execute_meter(words: int, index: int, n_bytes: int, now: int) -> int:
    """METER (arrays.MeterArray.execute): `words` are the addresses of configured, rate, burst, tokens, last; then the
    number of rates, whether bytes count, the size."""
    if ltu(index, ld64(words + 56)) == 0 or ld8(ld64(words) + index) == 0:
        return 0
    n_rates = ld64(words + 40)
    cost = n_bytes if ld64(words + 48) else 1
    for level in range(n_rates - 1, -1, -1):
        at = 8 * (index * n_rates + level)
        produced = int(now * load_double(ld64(words + 8) + at))
        tokens, last = ld64(words + 24) + at, ld64(words + 32) + at
        left = min(ld64(tokens) + max(produced - ld64(last), 0), ld64(ld64(words + 16) + at))
        st64(last, produced)
        if left < cost:
            st64(tokens, left)
            return level + 1
        st64(tokens, left - cost)
    return 0


@kernel
def _twist(state: int) -> None:
    """The next 624 words of the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998)."""
    for i in range(624):
        mixed = (ld32(state + 4 * i) & 0x80000000) | (ld32(state + 4 * ((i + 1) % 624)) & 0x7FFFFFFF)
        word = ld32(state + 4 * ((i + 397) % 624)) ^ (mixed >> 1)
        if mixed & 1:
            word ^= 0x9908B0DF
        st32(state + 4 * i, word)


@kernel
def _random32(state: int) -> int:
    at = ld32(state + 4 * 624)
    if at >= 624:
        _twist(state)
        at = 0
    st32(state + 4 * 624, at + 1)
    word = ld32(state + 4 * at)
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    return (word ^ (word >> 18)) & 0xFFFFFFFF


@kernel
def random_within(frame: int, low: int, high: int) -> int:
    """RANDOM: the number that Python's random.randint returns from the same state."""
    state = ld64(ld64(frame + CELL.context) + CTX.random)
    count = high - low + 1
    n_bits, rest = 0, count
    while rest:
        n_bits += 1
        rest = shr(rest, 1)
    while True:
        if n_bits <= 32:
            drawn = _random32(state) >> (32 - n_bits) if n_bits else 0
        else:
            drawn = _random32(state)
            drawn |= (_random32(state) >> (64 - n_bits)) << 32
        if n_bits == 0 or ltu(drawn, count):
            return low + drawn
