"""Collectives of all kinds: ranks and aggregator together over bad networks, against plain Python; what is sent; the
aggregator against its reference; and results that contradict a rank."""

import itertools
import random
import struct
from functools import reduce
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.errors import ConfigError, PacketError
from switchml.protocol import collectives, halves, sending, worker
from switchml.protocol import packet as p
from switchml.protocol import worker_state as rules
from switchml.protocol.pool import Pool
from switchml.protocol.retransmission import MILLISECOND, SECOND
from switchml.protocol.sparse import Sparse
from switchml.protocol.worker import Worker
from tests.support import reference_fixedpoint as numbers
from tests.support.examples import examples
from tests.support.packets import AddressedPacket, SparsePacket, V2Packet
from tests.support.rank_network import PAYLOAD, TAG, Call, Network, Weather, values
from tests.support.reference_pool import ReferencePoolV2, sum_of_halves
from tests.switchml.protocol.test_sparse import block_sums, tensors

KINDS = ("all_reduce", "sum", "sparse", "reduce", "reduce_scatter", "broadcast", "all_gather", "barrier")
UNTOUCHED = 99
HALF_OPS = tuple(halves.OPS.values())


def combined(op: int, parts: list[bytes]) -> bytes:
    """The op over whole byte strings, in plain integers; of half precision in float32."""
    if op > p.OP_XOR:
        return sum_of_halves(op, dict(enumerate(parts)))
    size = 8 if op == p.OP_MAX64 else 4
    does = {p.OP_MAX32: max, p.OP_MAX64: max, p.OP_OR: lambda a, b: a | b, p.OP_XOR: lambda a, b: a ^ b}[op]
    words = [[int.from_bytes(part[i : i + size], "big") for i in range(0, len(part), size)] for part in parts]
    return b"".join(reduce(does, column).to_bytes(size, "big") for column in zip(*words, strict=True))


class Scene:
    """One collective of all ranks: `calls[r]` is rank r's, `check()` holds the targets against what they should be."""

    def __init__(self, kind: str, workers: int, chooser: random.Random, dtypes: list[str], half_ops: tuple = ()):
        self.kind, self.workers, self.root = kind, workers, chooser.randrange(workers)
        self.op, self.dtype = p.OP_SUM, "raw"
        numel = chooser.choice([1, chooser.randint(1, 70), chooser.randint(1, 900)])
        if kind in ("sum", "sparse") or (kind.startswith("reduce") and chooser.random() < 0.6):
            self.dtype = chooser.choice(dtypes)
        elif kind in ("all_reduce", "reduce", "reduce_scatter"):
            self.op = chooser.choice([p.OP_MAX32, p.OP_MAX64, p.OP_OR, p.OP_XOR, *half_ops])
            numel *= 8 if self.op == p.OP_MAX64 else 4
        if kind == "sum":
            numel = chooser.choice([1, 300, 900, chooser.randint(1, 900)])
        elif kind == "sparse":
            numel = chooser.choice([1, chooser.randint(1, 300), chooser.randint(1, 4000)])
        self.numel = 0 if kind == "barrier" else numel
        self.divisor = chooser.choice([1, workers]) if kind in ("sum", "sparse") else 1
        item = 1 if self.dtype == "raw" else np.dtype(numbers.element(self.dtype)).itemsize
        share = self.numel * item
        self.scheme = {
            "all_reduce": collectives.all_reduce(self.op, 4),
            "reduce": collectives.reduce(self.root, self.op, 4),
            "reduce_scatter": collectives.reduce_scatter(workers, share, self.op, 4),
            "broadcast": collectives.broadcast(self.root, 1),
            "all_gather": collectives.all_gather(workers, share, 1),
            "barrier": collectives.barrier(),
        }.get(kind)
        is_odd = chooser.random() < 0.15
        size = self.numel * (workers if kind == "reduce_scatter" else 1)
        self.calls = []
        if kind == "sparse":
            blocks = Sparse(chooser.choice([8, 16, 64, 256]), chooser.choice([0.0, 0.0, 1e-5]))
            sources, in_place = (
                tensors(self.dtype, numel, workers, blocks.block, chooser, is_odd),
                chooser.random() < 0.3,
            )
            self.sums = block_sums([Call(self.dtype, self.divisor, x, x, blocks=blocks) for x in sources])
            for x in sources:
                target = x.copy() if in_place else np.full_like(x, UNTOUCHED)
                self.calls.append(Call(self.dtype, self.divisor, target if in_place else x, target, blocks=blocks))
            return
        for _ in range(workers):
            if self.dtype != "raw":
                x = values(self.dtype, size, chooser, is_odd)
            else:
                x = np.frombuffer(chooser.randbytes(size), np.uint8).copy()
                if self.op in HALF_OPS:
                    x[1::2] &= 0xBF  # finite
            target = np.full(self.numel * (workers if kind == "all_gather" else 1), UNTOUCHED, x.dtype)
            self.calls.append(Call(self.dtype, self.divisor, x, target, collective=self.scheme, numel=self.numel))

    def check(self) -> None:
        sources = [call.source for call in self.calls]
        for rank, call in enumerate(self.calls):
            got, untouched = call.target, np.full_like(call.target, UNTOUCHED)
            if self.kind == "sparse":
                assert got.tobytes() == self.sums, rank
            elif self.kind == "all_gather":
                share = got.reshape(self.workers, -1)
                for other in range(self.workers):
                    wanted = untouched[: self.numel] if other == rank else sources[other]
                    assert (share[other] == wanted).all(), (rank, other)
            elif self.kind == "broadcast":
                assert (got == (untouched if rank == self.root else sources[self.root])).all(), rank
            elif self.kind == "reduce" and rank != self.root:
                assert (got == untouched).all(), rank
            elif self.kind != "barrier":
                first = rank * self.numel if self.kind == "reduce_scatter" else 0
                self.check_sums([x[first : first + self.numel] for x in sources], got)

    def check_sums(self, parts: list[np.ndarray], got: np.ndarray) -> None:
        if self.dtype == "raw":
            assert got.tobytes() == combined(self.op, [part.tobytes() for part in parts])
            return
        per = numbers.per_chunk(self.dtype, PAYLOAD)
        for start in range(0, self.numel, per):
            blocks = [part[start : start + per].tolist() for part in parts]
            allowed = (
                np.array(numbers.all_reduce(self.dtype, blocks, self.divisor, spare)[0], got.dtype).tobytes()
                for spare in range(numbers.spread(self.dtype, self.workers) + 1)
            )
            assert got[start : start + per].tobytes() in allowed, (self.kind, self.dtype, start)


@given(
    st.integers(1, 5), st.sampled_from([1, 2, 4, 16, 64]), st.integers(0, 2**32),
    st.sampled_from([0.0, 0.02, 0.1, 0.3]), st.sampled_from([0.0, 0.02, 0.2]), st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.0, 0.1]), st.sampled_from([0, 512, 2048]),
)  # fmt: skip
@examples(200)
def test_every_rank_gets_the_exact_results(workers, slots, seed, loss, double, late, junk, large):
    """Of every kind, dtype and op, dense and sparse, one after the other or at once, with any window and start;
    sequence numbers wrap in half of the runs. Dense all-reduces of one shape come again, with a history. With
    large packets the bits are those of ordinary ones."""
    chooser = random.Random(seed)
    wire = chooser.choice([0, 0, 1, 2])
    dtypes = [dtype for dtype in numbers.DENSE if numbers.wire(dtype) in (0, wire)]
    kinds = chooser.choice([KINDS, ("sum",), ("sum", "sparse")])
    scenes = [Scene(chooser.choice(kinds), workers, chooser, dtypes, HALF_OPS) for _ in range(chooser.randint(1, 5))]
    isn = chooser.choice([0, 2**32 - 2 * slots, 2**31 - 2 * slots, chooser.randrange(2**32) // (2 * slots) * 2 * slots])
    network = Network(
        [[scene.calls[rank] for scene in scenes] for rank in range(workers)], slots=slots,
        windows=[chooser.randint(1, slots) for _ in range(workers)], isn=isn,
        weather=Weather(loss, double, late, junk=junk), seed=seed,
        at_once=[chooser.random() < 0.5 for _ in range(workers)], histories=chooser.random() < 0.7,
        start_spread=chooser.choice([0, 10 * MILLISECOND, SECOND]), collectives=chooser.random() < 0.8, large=large,
    )  # fmt: skip
    with mock.patch.object(worker, "PAST_CACHES_BYTES", chooser.choice([0, 512, worker.PAST_CACHES_BYTES])):
        network.run(limit=600 * SECOND)
    for scene in scenes:
        scene.check()


# -- what is sent --


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "broadcast", "reduce", "barrier"])
def test_only_what_is_needed_travels(kind):
    """Each rank's data once, and only for others."""
    workers, chunks = 4, 32
    per_rank, root = {}, 2
    numel = chunks * PAYLOAD
    schemes = {
        "reduce_scatter": collectives.reduce_scatter(workers, numel, p.OP_OR),
        "all_gather": collectives.all_gather(workers, numel, 1),
        "broadcast": collectives.broadcast(root, 1),
        "reduce": collectives.reduce(root, p.OP_OR),
        "barrier": collectives.barrier(),
    }
    x = np.zeros(workers * numel, np.uint8)
    size = 0 if kind == "barrier" else numel
    calls = [[Call("raw", 1, x, np.zeros_like(x), -1, None, schemes[kind], size)] for _ in range(workers)]
    network = Network(calls, slots=256, windows=[256] * workers).run(limit=SECOND)
    for rank, sendings in enumerate(network.first_sending):
        per_rank[rank] = sum(len(data) == p.ADDRESSED_BYTES + PAYLOAD for data in sendings.values())
        assert {len(data) for data in sendings.values()} <= {p.ADDRESSED_BYTES, p.ADDRESSED_BYTES + PAYLOAD}
    assert (
        per_rank
        == {
            "reduce_scatter": dict.fromkeys(range(4), 3 * chunks),
            "all_gather": dict.fromkeys(range(4), chunks),
            "broadcast": {0: 0, 1: 0, 2: chunks, 3: 0},
            "reduce": {0: chunks, 1: chunks, 2: 0, 3: chunks},
            "barrier": dict.fromkeys(range(4), 0),
        }[kind]
    )


@pytest.mark.parametrize("first", ["all_gather", "reduce_scatter"])
def test_two_directions_share_the_slots(first):
    """An all-gather and a reduce-scatter of equal size: the one that comes second does not wait for the first."""
    workers, numel = 4, 64 * PAYLOAD
    x = np.zeros(workers * numel, np.uint8)
    schemes = {
        "all_gather": collectives.all_gather(workers, numel, 1),
        "reduce_scatter": collectives.reduce_scatter(workers, numel, p.OP_OR),
    }
    order = sorted(schemes, key=lambda kind: kind != first)
    calls = [
        [Call("raw", 1, x, np.zeros_like(x), -1, None, schemes[kind], numel) for kind in order] for _ in range(workers)
    ]
    network = Network(calls, slots=32, windows=[16] * workers, collectives=True)
    behind, most = [], int(network.ranks[0].window["size"])
    while not all(map(network.is_done, range(workers))):
        network.step()
        done = [[int(task["done"]) for task in worker.state.tasks[:2]] for worker in network.ranks]
        behind += [abs(one - two) for one, two in done]
    assert max(behind) <= 2 * most
    network.check_end()


def test_two_queues_take_turns():
    """No packet stands on the link behind all that another queue may have in flight."""
    worker = Worker(
        rank=0, workers=2, slots=256, job_tag=TAG, isn=0, payload_bytes=PAYLOAD, lossless=True, two_queues=True
    )
    numel = 300 * PAYLOAD
    x = np.zeros(2 * numel, np.uint8)
    for scheme in (collectives.reduce_scatter(2, numel, p.OP_OR), collectives.all_gather(2, numel, 1)):
        worker.start(x.ctypes.data, x.ctypes.data, numel, "raw", collective=scheme)
    queues = [AddressedPacket.unpack(data).seq % 256 // 128 for data in worker.receive([], 0)]
    runs = [len(list(group)) for _, group in itertools.groupby(queues)]
    assert queues.count(0) == queues.count(1) == 128 and set(runs) == {sending.TURN}


def test_shares_take_turns():
    """All chunks of all shares, each once, in turns of `run`."""
    task = np.zeros(1, rules.TASK)[0]
    for shares, chunks, run in [(3, 7, 2), (1, 5, 4), (4, 1, 4), (2, 8, 4), (5, 3, 16)]:
        task["shares"], task["share_chunks"], task["run"] = shares, chunks, run
        order = [(collectives.owner_of(task, k), collectives.place_of(task, k)) for k in range(shares * chunks)]
        assert sorted(order) == [(owner, place) for owner in range(shares) for place in range(chunks)]
        assert order[: min(run, chunks)] == [(0, place) for place in range(min(run, chunks))]


def test_a_switch_that_can_not_make_packets_grow_gets_padding():
    worker = Worker(rank=0, workers=2, slots=4, job_tag=TAG, isn=0, payload_bytes=1024, padded=True)
    x = np.zeros(1024, np.uint8)
    worker.start(x.ctypes.data, x.ctypes.data, x.size, "raw", collective=collectives.broadcast(1, 1))
    (data,) = worker.receive([], 0)
    assert AddressedPacket.unpack(data).padded and len(data) == p.ADDRESSED_BYTES + 512


def test_exact_sums_go_to_all_ranks():
    worker = Worker(rank=0, workers=2, slots=4, job_tag=TAG, isn=0, payload_bytes=PAYLOAD)
    with pytest.raises(ConfigError, match="exact sums"):
        worker.start(1, 1, 1, "float32/exact", collective=collectives.reduce(0, p.OP_SUM))


# -- results that contradict the rank --


def answer(seq=0, reach=p.REACH_ROOT, root=0, values=None, flags=0, cut=0) -> bytes:
    packet = AddressedPacket(
        p.RESULT, seq, TAG, p.CODE_ZERO, flags, p.CODE_UNKNOWN, reach, root, p.OP_OR, values, payload_bytes=cut
    )
    return packet.pack()


LANES = np.arange(PAYLOAD // 4, dtype=np.int32)


@pytest.mark.parametrize(("packet", "error"), [
    (answer(values=LANES), rules.OK), (answer(cut=PAYLOAD), rules.ERROR_STREAM), (answer(), rules.ERROR_STREAM),
    (answer(values=LANES, flags=p.FLAG_MIXED), rules.ERROR_MIXED), (answer(flags=p.FLAG_MIXED), rules.ERROR_MIXED),
    (SparsePacket(p.RESULT, 0, TAG, 0, (p.NO_WORD,)).pack(), rules.ERROR_MIXED),
    (V2Packet(p.RESULT, 0, TAG, 0, 0, 0, LANES).pack(), rules.ERROR_MIXED),
])  # fmt: skip
def test_results_that_contradict_the_rank(packet, error):
    worker = Worker(rank=0, workers=2, slots=1, job_tag=TAG, isn=0, payload_bytes=PAYLOAD)
    worker.x = np.zeros(PAYLOAD, np.uint8)
    address = worker.x.ctypes.data
    worker.start(address, address, PAYLOAD, "raw", collective=collectives.reduce(0, p.OP_OR))
    worker.receive([], 0)
    worker.receive([packet], 1)
    assert worker.failure["code"] == error
    if not error:
        assert worker.x.tobytes() == LANES.astype(">i4").tobytes()


# -- the aggregator --


@given(
    st.integers(1, 4),
    st.sampled_from([256, 1024]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.sampled_from([0, 4096, 2**31 - 8, 2**31, 2**32 - 8, 2**32 - 16]),
    st.lists(st.tuples(*[st.integers(0, 255)] * 5), min_size=1, max_size=60),
)
@examples(400)
def test_pool_and_reference_agree(workers, payload, wire, halves, isn, choices):
    """Addressed, sparse and dense contributions of any shape, in and out of turn, to two slots, from ranks that keep to
    no rule; some have another job's tag."""
    pools = [
        ReferencePoolV2(workers, 2, payload, wire, TAG, isn, halves),
        Pool(workers=workers, slots=2, payload_bytes=payload, wire=wire, job_tag=TAG, isn=isn, halves=halves),
    ]
    turns = [0, 0]
    for rank, shape, ahead, word, value in choices:
        dense = payload // 512 + 1
        size = dense if word & 8 else (4, 4, 5, 7, 6, 4 | dense, 4 | dense, dense)[shape % 8]
        columns = (0, 0, 0, 0, 0, 1, 1, 2, 8, 3)[shape // 8 % 10]  # 0: addressed
        rest = {0: payload, 1: 256, 2: 512, 3: 1024}[size & 3] if size != 4 else 0
        if shape > 250:
            rest += 1
        first = (p.CONTRIBUTION | (wire if word % 3 else 0)) << 4 | (8 if value > 200 else 0) | size
        slot, tag = word // 2 % 2, TAG if (ahead ^ value) % 20 else TAG ^ 1
        seq = (isn + 2 * (turns[slot] + (-3, -2, -1, 0, 0, 0, 0, 0, 0, 1, 2)[ahead % 11]) + slot) % 2**32
        data = struct.pack(">BBIHBB", first, columns if size & 4 else ahead, seq, tag, value, word % 2)
        if size & 4:
            op = word // 64 if word % 5 else 5 + value % 5
            word = word & 0x3F if op > 4 else word  # of half precision, finite numbers
            addressed = bytes((ahead % 16 // 5, word % 2, op, value))
            words = [struct.pack(">I", (word * 77 * (column + 1)) << 8 | value) for column in range(columns)]
            data += b"".join(words or [addressed])
        data += bytes([value, word]) * (rest // 2) + bytes([value]) * (rest % 2)
        outcomes = [tuple(pool.receive(rank % workers, data)) for pool in pools]
        assert outcomes[0] == outcomes[1]
        turns[slot] += outcomes[0][0] == "multicast"


def test_packets_and_bytes():
    packet = AddressedPacket(p.CONTRIBUTION, 4096, TAG, -3, 5, 9, p.REACH_OTHERS, 200, p.OP_SUM, np.arange(128), 1)
    back = AddressedPacket.unpack(packet.pack())
    assert back.pack() == packet.pack() and (back.root, back.ahead, back.wire) == (200, 9, 1)
    assert packet.pack()[:14] == bytes.fromhex("9500 00001000 c0de fd 05 02c80076")
    for bad in (b"", packet.pack()[:-1], b"\xf4" + bytes(13), b"\x84\x01" + bytes(12), b"\x84\x00" + b"\x03" * 12):
        with pytest.raises(PacketError):
            AddressedPacket.unpack(bad)
