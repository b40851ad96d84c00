"""Sparse streams: ranks and aggregator together over bad networks, against exact arithmetic block by block; which
rounds are sent at all; and the scan for blocks."""

import math
import random
import struct

import numpy as np
import pytest
import reference_fixedpoint as numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rules_together import PAYLOAD, TAG, Call, Network, Weather, results

from switchml import sparse
from switchml.errors import ConfigError, PacketError
from switchml.fixedpoint import FORMATS
from switchml.packet import CONTRIBUTION, NO_WORD, RESULT, SparsePacket, sparse_word
from switchml.pool import Pool
from switchml.retransmission import MILLISECOND, SECOND
from switchml.sparse import Sparse
from switchml.worker import Worker
from tests.reference_pool import ReferencePoolV2


def columns_of(dtype: str, block: int) -> tuple[int, int]:
    """(blocks in a packet, elements of a block), as docs/protocol.md has them."""
    per_packet = numbers.per_chunk(dtype, PAYLOAD)
    columns = max((c for c in (1, 2, 4, 8) if per_packet // c >= block), default=1)
    return columns, per_packet // columns


def is_zero(values, threshold: float) -> bool:
    return all(abs(value) <= threshold for value in values)


def tensors(dtype: str, numel: int, workers: int, block: int, chooser: random.Random, oddities: bool):
    """One tensor a rank, of blocks that are zero, tiny, or full of numbers of many magnitudes; some alike everywhere."""
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


def expected(calls: list[Call]) -> bytes:
    """Exact arithmetic, block by block; blocks that no rank has are zero."""
    dtype, threshold = calls[0].dtype, calls[0].blocks.threshold
    columns, block = columns_of(dtype, calls[0].blocks.block)
    answer = []
    for first in range(0, calls[0].source.size, block):
        parts = [call.source[first : first + block].tolist() for call in calls]
        parts = [[0] * len(part) if is_zero(part, threshold) else part for part in parts]
        answer += numbers.all_reduce(dtype, parts, calls[0].divisor)[0]
    return np.array(answer, numbers.element(dtype)).tobytes()


def scenario(workers: int, seed: int) -> list[list[Call]]:
    """The same sparse and dense all-reduces for each rank, in a random order."""
    chooser = random.Random(seed)
    ranks: list[list[Call]] = [[] for _ in range(workers)]
    wire = chooser.choice([0, 0, 1, 2])
    dtypes = [dtype for dtype in numbers.LANES if numbers.wire(dtype) in (0, wire)]
    for _ in range(chooser.randint(1, 4)):
        dtype, numel = chooser.choice(dtypes), chooser.choice([1, chooser.randint(1, 300), chooser.randint(1, 4000)])
        blocks = Sparse(chooser.choice([8, 16, 64, 256]), chooser.choice([0.0, 0.0, 1e-5]))
        divisor, oddities, in_place = chooser.choice([1, workers]), chooser.random() < 0.2, chooser.random() < 0.3
        for calls, x in zip(ranks, tensors(dtype, numel, workers, blocks.block, chooser, oddities), strict=True):
            target = x.copy() if in_place else np.full_like(x, 99)
            calls.append(Call(dtype, divisor, target if in_place else x, target, blocks=blocks))
            calls[-1].original = x
        if chooser.random() < 0.3:
            for calls, x in zip(ranks, tensors(dtype, numel, workers, 64, chooser, False), strict=True):
                calls.append(Call(dtype, divisor, x, np.full_like(x, 99)))
                calls[-1].original = x
    return ranks


def exact(ranks: list[list[Call]]) -> list[bytes]:
    answers = []
    for column in zip(*ranks, strict=True):
        calls = [Call(c.dtype, c.divisor, c.original, c.target, blocks=c.blocks) for c in column]
        for call in calls:
            call.blocks = call.blocks or Sparse(numbers.per_chunk(call.dtype, PAYLOAD))
        answers.append(expected(calls))
    return answers


@given(
    st.integers(1, 5),
    st.sampled_from([1, 2, 4, 16]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.02, 0.1, 0.3]),
    st.sampled_from([0.0, 0.02, 0.2]),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=120)
def test_every_rank_gets_the_exact_bits(workers, slots, seed, loss, double, late, junk):
    """Sparse and dense tensors, any format, thresholds, blocks and weather; sequence numbers wrap in half of the
    runs."""
    chooser = random.Random(seed)
    ranks = scenario(workers, seed)
    wanted = exact(ranks)
    isn = chooser.choice([0, 2**32 - 2 * slots, chooser.randrange(2**32) // (2 * slots) * 2 * slots])
    Network(
        ranks,
        slots=slots,
        windows=[chooser.randint(1, slots) for _ in range(workers)],
        isn=isn,
        weather=Weather(loss, double, late, junk=junk),
        seed=seed,
        at_once=[chooser.random() < 0.5 for _ in range(workers)],
        start_spread=chooser.choice([0, 10 * MILLISECOND]),
    ).run(limit=600 * SECOND)
    for one in results(ranks):
        assert one == wanted
