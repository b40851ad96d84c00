"""Sparse streams: which rounds are sent at all, what contradicts a rank, and the scan for blocks. Whole sums over bad
networks are in test_collectives.py, with the tensors and the exact arithmetic that are here."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import ConfigError, PacketError
from switchml.protocol import sparse
from switchml.protocol import worker_state as rules
from switchml.protocol.fixedpoint import FORMATS
from switchml.protocol.packet import CONTRIBUTION, NO_WORD, RESULT
from switchml.protocol.retransmission import SECOND
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker
from tests.support import reference_fixedpoint as numbers
from tests.support.examples import examples
from tests.support.packets import SparsePacket, sparse_word
from tests.support.rank_network import PAYLOAD, TAG, Call, Network, results


def columns_of(dtype: str, block: int) -> tuple[int, int]:
    """(blocks in a packet, elements of a block), as docs/protocol.md has them."""
    per_packet = numbers.per_chunk(f"{dtype}/limbs" if dtype in numbers.DIGITS else dtype, PAYLOAD)
    columns = max((c for c in (1, 2, 4, 8) if per_packet // c >= block), default=1)
    return columns, per_packet // columns


def is_zero(values, threshold: float) -> bool:
    return all(abs(value) <= threshold for value in values)


def tensors(dtype: str, numel: int, workers: int, block: int, chooser: random.Random, oddities: bool):
    """One tensor a rank, of blocks that are zero, tiny, or full of numbers of many sizes; some alike everywhere."""
    made = []
    everywhere = chooser.random() < 0.3
    density = chooser.choice([0.0, 0.05, 0.3, 1.0])
    plan = random.Random(chooser.random())
    for _ in range(workers):
        x = np.zeros(numel, numbers.element(dtype))
        if everywhere:
            plan.seed(1)
        for first in range(0, numel, block):
            if plan.random() >= density:
                continue
            part = x[first : first + block]
            at = chooser.randrange(part.size)
            if dtype.startswith("int"):
                part[at] = chooser.choice([1, -7, int(np.iinfo(dtype).max) // 8])
            else:
                part[:] = np.float64([chooser.gauss(0, 1) for _ in part]) * 2.0 ** chooser.choice([0, 0, -30, 60])
                if chooser.random() < 0.3:
                    part[:] = chooser.choice([-0.0, 1e-6, -1e-6])
                if oddities and chooser.random() < 0.2:
                    part[at] = chooser.choice([math.inf, -math.inf, math.nan])
        made.append(x)
    return made


def block_sums(calls: list[Call]) -> bytes:
    """Exact arithmetic, block by block; blocks that no rank has are zero."""
    dtype, threshold = calls[0].dtype, calls[0].blocks.threshold
    columns, block = columns_of(dtype, calls[0].blocks.block)
    answer = []
    for first in range(0, calls[0].source.size, block):
        parts = [call.source[first : first + block].tolist() for call in calls]
        parts = [[0] * len(part) if is_zero(part, threshold) else part for part in parts]
        answer += numbers.all_reduce(dtype, parts, calls[0].divisor)[0]
    return np.array(answer, numbers.element(dtype)).tobytes()


# -- what is sent --


def test_only_blocks_of_the_union_travel():
    """A round without data for each stream to begin with, then one for each block that some rank has."""
    owned = [{3, 200, 900}, {3, 201}, set()]
    columns = []
    for blocks in owned:
        x = np.zeros(64 * 1000, np.float32)
        for block in blocks:
            x[64 * block + 5] = block
        columns.append([Call("float32", 1, x, np.full_like(x, 9), blocks=Sparse(64))])
    network = Network(columns, slots=256, windows=[256] * 3).run(limit=SECOND)
    streams = sparse.streams_of(256, 1000)
    assert streams == 256
    for worker in network.ranks:
        assert worker.counters["sent"] == streams + len(set.union(*owned)) and worker.counters["streamed"] == 4
    with_data = [sum(len(data) == 10 + 4 + PAYLOAD for data in sendings.values()) for sendings in network.first_sending]
    assert with_data == [3, 2, 0]
    assert {len(data) for sendings in network.first_sending for data in sendings.values()} <= {14, 14 + PAYLOAD}
    assert all(results([calls]) == results([columns[0]]) for calls in columns)


def test_blocks_are_fused_into_packets():
    """Eight blocks of 8 elements share a packet; each column goes its own way."""
    x = np.zeros(8 * 64, np.float32)
    x[[0, 3 * 64 + 9, 5 * 64 + 10, 7 * 64 + 63]] = 1, 2, 3, 4
    call = Call("float32", 1, x, np.full_like(x, 9), blocks=Sparse(8))
    network = Network([[call]], slots=1, windows=[1]).run(limit=SECOND)
    # One stream: the columns' blocks are (0: entry 0), (1: entries 3 and 5), (7: entry 7): two rounds with data.
    assert network.ranks[0].counters["sent"] == 3
    assert (call.target == x).all()


def test_a_switch_that_can_not_make_packets_grow_gets_padding():
    worker = Worker(rank=0, workers=2, slots=4, job_tag=TAG, isn=0, payload_bytes=1024, padded=True)
    x = np.zeros(256, np.float32)
    worker.start(x.ctypes.data, x.ctypes.data, x.size, "float32", blocks=Sparse())
    (data,) = worker.receive([], 0)
    packet = SparsePacket.unpack(data)
    assert packet.padded and packet.words == (NO_WORD,) and len(data) == 10 + 4 + 512


# -- errors --


def start(blocks: Sparse | None = None, value: float = 1.0) -> Worker:
    worker = Worker(rank=0, workers=2, slots=1, job_tag=TAG, isn=0, payload_bytes=PAYLOAD)
    worker.x = np.zeros(64 * 8, np.float32)
    worker.x[64 * 3] = value
    worker.start(worker.x.ctypes.data, worker.x.ctypes.data, worker.x.size, "float32", blocks=blocks)
    worker.receive([], 0)
    return worker


def answer(words, *, seq: int = 0, mark: int = 0, values=None) -> bytes:
    return SparsePacket(RESULT, seq, TAG, mark, words, values).pack()


@pytest.mark.parametrize(("packet", "error"), [
    (answer((sparse_word(3, 1),), mark=2), rules.ERROR_MIXED),
    (answer((sparse_word(3, 1),), mark=1), rules.ERROR_OVERFLOW),
    (answer((sparse_word(3, 1), NO_WORD)), rules.ERROR_MIXED), (answer((sparse_word(4, 1),)), rules.ERROR_STREAM),
    (answer((NO_WORD,)), rules.ERROR_STREAM), (answer((sparse_word(3, -9),)), rules.ERROR_AHEAD),
    (answer((sparse_word(3, 0),)), rules.OK), (answer((sparse_word(2, 0),)), rules.OK),
])  # fmt: skip
def test_results_that_contradict_the_rank(packet, error):
    worker = start(Sparse())
    worker.receive([packet], 1)
    assert worker.failure["code"] == error


def test_results_past_the_end_or_backwards_are_errors():
    for word in (sparse_word(8, 0), sparse_word(2, 0)):
        worker = start(Sparse(), value=0.0)
        worker.receive([answer((sparse_word(2, 0),))], 1)
        assert worker.failure["code"] == rules.OK
        worker.receive([answer((word,), seq=1, values=np.zeros(64, np.int32))], 2)
        assert worker.failure["code"] == rules.ERROR_STREAM
    worker = start(Sparse(), value=0.0)
    worker.receive([answer((sparse_word(2, 0),))], 1)
    worker.receive([answer((NO_WORD,), seq=1)], 2)
    assert worker.failure["code"] == rules.ERROR_STREAM, "a block was announced, and no rank sent it"


def test_a_dense_rank_among_sparse_ones_hears_of_it():
    worker = start()
    worker.receive([answer((NO_WORD,), mark=2)], 1)
    assert worker.failure["code"] == rules.ERROR_MIXED


@pytest.mark.parametrize("options", [{"block": 0}, {"block": 2.5}, {"threshold": -1}, {"threshold": math.nan}])
def test_nonsense_is_refused(options):
    with pytest.raises(ConfigError, match="sparse"):
        Sparse(**options)


# -- the scan --


@given(
    st.sampled_from(["float32", "float64", "int32", "int64", "float32/int8"]),
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1.0, 1e-3, 0.1, 2.5, 1e30]),
)
@examples(300)
def test_zero_blocks(fmt, count, seed, threshold):
    chooser = random.Random(seed)
    odd = [0, -0.0, threshold, -threshold, np.nextafter(threshold, 9e99), np.nextafter(-threshold, -9e99), math.nan]
    whole = [1, -1, int(min(threshold, 2**31 - 2)) + 1, -(2**31)]
    odd += [math.inf, 1e-45, 1e-310] if fmt.startswith("float") else whole
    dtype = fmt.partition("/")[0]
    if dtype.startswith("int"):
        odd = [int(value) for value in odd if not math.isnan(value) and abs(value) < 2**31] + [-(2**31)]
    with np.errstate(over="ignore"):
        x = np.array([chooser.choice(odd[: chooser.randint(1, len(odd))]) for _ in range(count)]).astype(dtype)
    wanted = all(abs(value) <= threshold for value in x.tolist())
    assert sparse.is_zero(FORMATS[fmt], x.ctypes.data, count, threshold) == wanted
    assert sparse.is_clear(x.ctypes.data, x.nbytes) == (x.tobytes() == bytes(x.nbytes))


# -- the aggregator --


def test_packets_and_bytes():
    packet = SparsePacket(CONTRIBUTION, 4096, TAG, 4, (sparse_word(2, -3), NO_WORD), np.arange(128), wire=1, r=True)
    back = SparsePacket.unpack(packet.pack())
    assert back.pack() == packet.pack() and back.words == (0x282, NO_WORD) and back.r and back.wire == 1
    assert packet.pack()[:18] == bytes.fromhex("9d02 00001000 c0de 00 04 00000282 ffffffff")
    for bad in (b"", packet.pack()[:-1], b"\xf4" + bytes(13), b"\x84\x03" + bytes(20), b"\x81" + bytes(265)):
        with pytest.raises(PacketError):
            SparsePacket.unpack(bad)
