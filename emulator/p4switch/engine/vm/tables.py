"""The VM's table lookup, registers, counters, meters and random numbers; `lookup` writes the data
structures read here."""

from emulator.p4switch.engine.layout import CELL, CTX, offsets
from emulator.p4switch.engine.raw import arg, ld8, ld32, ld64, load_double, ltu, remu, shr, st32, st64, val
from switchml.runtime.jit import kernel

SLOTS_WORDS = ("slots", "slot_mask", "key_at")
"""Words of a hash table of records: address and number - 1 of its slots, and the offset of the masked key in a record.
A slot: record (0: free), hash."""
SLOTS = offsets("Slots", SLOTS_WORDS)
TABLE_WORDS = (*SLOTS_WORDS, "groups", "n_groups", "ranges", "n_ranges", "bounds_at", "default")
"""Words of a table in the directory: its hash table; its groups (address, number), ordered by their lowest ranks;
range-matched fields (address of pairs: offset in the key, limbs; number) and the offset of their bounds in an entry;
address of the default target."""
TABLE = offsets("Table", TABLE_WORDS)
TABLE_BYTES = 8 * len(TABLE_WORDS)
GROUP_WORDS = ("mask", "seed", "first")
"""Words of a group, the entries with one mask: address of the mask's limbs, the hash seed, and the entries' lowest
rank."""
GROUP = offsets("Group", GROUP_WORDS)
GROUP_BYTES = 8 * len(GROUP_WORDS)
ENTRY_WORDS = ("target", "next", "rank", "counter", "last_hit", "index")
"""Words of an entry: address of its target, the next entry of the same mask and key (0: none), its rank, addresses of
its counter and of its last-hit time, its index."""
ENTRY = offsets("Entry", ENTRY_WORDS)
TARGET_WORDS = ("action", "args", "next", "n_choices", "choices", "members")
"""Words of a target: position of its action's code, address of the arguments, position where code continues; for a
group, the number of eligible members (0: no group, or empty), address of their handles, and of the directory of
members."""
TARGET = offsets("Target", TARGET_WORDS)
CHUNK_BITS = 12
"""A directory holds the bytes of a record, then the addresses of chunks of 2^12 records."""
_MIX = -0x61C8864680B583EB
"""2^64 divided by the golden ratio (Knuth's multiplicative hashing)."""


@kernel
def _hash(key: int, mask: int, n: int, seed: int) -> int:
    """Hash of a key under a mask; it depends on the seed."""
    mixed = seed
    for i in range(0, 8 * n, 8):
        mixed = (mixed ^ (ld64(key + i) & ld64(mask + i))) * _MIX
        mixed ^= shr(mixed, 29)
    return mixed


@kernel
def same_under_mask(key: int, mask: int, value: int, n: int) -> bool:
    """Whether key & mask equals a value, n limbs each."""
    for i in range(0, 8 * n, 8):  # noqa: SIM110 (compiled: no generators)
        if ld64(key + i) & ld64(mask + i) != ld64(value + i):
            return False
    return True


@kernel
def _find(table: int, key: int, mask: int, n: int, mixed: int) -> int:
    """The slot of the record with a key under a mask, or the free slot for it. Linear probing."""
    slots, slot_mask, key_at = ld64(table + SLOTS.slots), ld64(table + SLOTS.slot_mask), ld64(table + SLOTS.key_at)
    at = mixed & slot_mask
    while True:
        slot = slots + 16 * at
        record = ld64(slot)
        if record == 0 or (ld64(slot + 8) == mixed and same_under_mask(key, mask, record + key_at, n)):
            return slot
        at = (at + 1) & slot_mask


@kernel
def link(table: int, key: int, mask: int, n: int, seed: int, record: int) -> int:
    """Set the record for a key under a mask, or remove it if `record` is 0. Returns the change in the number of used
    slots."""
    mixed = _hash(key, mask, n, seed)
    slot = _find(table, key, mask, n, mixed)
    is_used = 1 if ld64(slot) else 0
    if record:
        st64(slot, record)
        st64(slot + 8, mixed)
        return 1 - is_used
    if is_used:
        _free(ld64(table + SLOTS.slots), ld64(table + SLOTS.slot_mask), slot)
    return -is_used


@kernel
def _free(slots: int, slot_mask: int, slot: int) -> None:
    """Free a slot, and move up the slots displaced by it."""
    hole = (slot - slots) >> 4
    at = hole
    while True:
        at = (at + 1) & slot_mask
        moved = slots + 16 * at
        if ld64(moved) == 0:
            break
        home = ld64(moved + 8) & slot_mask
        if (at - home) & slot_mask >= (at - hole) & slot_mask:
            st64(slots + 16 * hole, ld64(moved))
            st64(slots + 16 * hole + 8, ld64(moved + 8))
            hole = at
    st64(slots + 16 * hole, 0)


@kernel
def move_slots(source: int, n: int, to: int, slot_mask: int) -> int:
    """Move n slots into a larger hash table."""
    for slot in range(source, source + 16 * n, 16):
        if ld64(slot):
            at = ld64(slot + 8) & slot_mask
            while ld64(to + 16 * at):
                at = (at + 1) & slot_mask
            st64(to + 16 * at, ld64(slot))
            st64(to + 16 * at + 8, ld64(slot + 8))
    return 0


@kernel
def _at_most(a: int, b: int, n: int) -> bool:
    """Whether a <= b, n limbs each, unsigned."""
    for i in range(8 * (n - 1), -8, -8):
        left, right = ld64(a + i), ld64(b + i)
        if left != right:
            return ltu(left, right) == 1
    return True


@kernel
def _in_ranges(table: int, entry: int, key: int) -> bool:
    """Whether a key is within the bounds of an entry: the lower and the upper one of each range."""
    ranges, low = ld64(table + TABLE.ranges), entry + ld64(table + TABLE.bounds_at)
    for _ in range(ld64(table + TABLE.n_ranges)):
        value, n = key + ld64(ranges), ld64(ranges + 8)
        high = low + 8 * n
        if not _at_most(low, value, n) or not _at_most(value, high, n):
            return False
        low = high + 8 * n
        ranges += 16
    return True


@kernel
def _best(table: int, key: int, n: int) -> int:
    """The best entry that matches a key, or 0 (tuple_space.TupleSpace.find)."""
    best, found = 0x7FFFFFFFFFFFFFFF, 0
    group = ld64(table + TABLE.groups)
    for _ in range(ld64(table + TABLE.n_groups)):
        if ld64(group + GROUP.first) > best:
            break
        mask = ld64(group + GROUP.mask)
        entry = ld64(_find(table, key, mask, n, _hash(key, mask, n, ld64(group + GROUP.seed))))
        while entry and ld64(entry + ENTRY.rank) < best:
            if _in_ranges(table, entry, key):
                best, found = ld64(entry + ENTRY.rank), entry
                break
            entry = ld64(entry + ENTRY.next)
        group += GROUP_BYTES
    return found


@kernel
def look_up(frame: int, number: int, key: int, n: int) -> None:
    """LOOKUP: find the target of a key; count a hit."""
    table = ld64(ld64(frame + CELL.context) + CTX.tables) + number * TABLE_BYTES
    entry = _best(table, key, n)
    if entry == 0:
        st64(frame + CELL.target, ld64(table + TABLE.default))
        st64(frame + CELL.hit, 0)
        return
    st64(frame + CELL.target, ld64(entry + ENTRY.target))
    st64(frame + CELL.index, ld64(entry + ENTRY.index))
    st64(frame + CELL.hit, 1)
    counter = ld64(entry + ENTRY.counter)
    st64(counter, ld64(counter) + 1)
    st64(counter + 8, ld64(counter + 8) + ld64(frame + CELL.ingress_length))
    st64(ld64(entry + ENTRY.last_hit), ld64(frame + CELL.now))


@kernel
def pick(target: int, number: int) -> int:
    """PICK: the target of the group member that a hash selects."""
    handle = ld64(ld64(target + TARGET.choices) + 8 * remu(number, ld64(target + TARGET.n_choices)))
    members = ld64(target + TARGET.members)
    chunk = ld64(members + 8 + 8 * (handle >> CHUNK_BITS))
    return chunk + ld64(members) * (handle & ((1 << CHUNK_BITS) - 1))


@kernel
def value_in_set(key: int, n: int, mask: int, table: int) -> bool:
    """VSET: whether a key is in a value set."""
    return ld64(_find(table, key, mask, n, _hash(key, mask, n, 0))) != 0


@kernel
def read_register(frame: int, at: int) -> None:
    """REG: read a register; 0 if out of bounds."""
    to, words, index, n = frame + arg(at, 1), frame + arg(at, 2), val(frame, at, 3), arg(at, 4)
    inside = ltu(index, ld64(words + 8)) == 1
    cell = ld64(words) + index * ld64(words + 16)
    for i in range(0, 8 * n, 8):
        st64(to + i, ld64(cell + i) if inside else 0)


@kernel
def write_register(frame: int, at: int) -> None:
    """REGW: write a register; ignored if out of bounds."""
    words, index, n, source = frame + arg(at, 1), val(frame, at, 2), arg(at, 3), frame + arg(at, 4)
    if ltu(index, ld64(words + 8)):
        cell, top = ld64(words) + index * ld64(words + 16), 8 * (n - 1)
        for i in range(0, top, 8):
            st64(cell + i, ld64(source + i))
        st64(cell + top, ld64(source + top) & ld64(words + 24))


@kernel
def count(words: int, index: int, n_bytes: int) -> None:
    """COUNT: count a packet and its bytes; ignored if out of bounds."""
    if ltu(index, ld64(words + 8)):
        cell = ld64(words) + 16 * index
        st64(cell, ld64(cell) + 1)
        st64(cell + 8, ld64(cell + 8) + n_bytes)


@kernel
def execute_meter(words: int, index: int, n_bytes: int, now: int) -> int:
    """METER (arrays.MeterArray.execute): `words` are the addresses of configured, rate, burst, tokens, last; then the
    number of rates, whether bytes are counted, the size."""
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
    """Compute the next 624 words of the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998)."""
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
