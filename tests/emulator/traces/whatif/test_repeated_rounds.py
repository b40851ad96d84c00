"""Rounds that go again: what a trace of our own backend tells, and what their price is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.jobs.workload.graph import Collective
from emulator.traces import repeated_rounds
from emulator.traces.events import Events, Lane, LaneKind, RankTrace, What, Wire, WireWhat
from emulator.traces.optimizer.machine import Machine
from emulator.traces.repeated_rounds import REPEAT_SHARE
from emulator.traces.whatif import changes, transfers
from emulator.traces.whatif.buckets import MIB
from emulator.traces.whatif.network import network_of
from switchml.protocol.sizes import PAYLOAD_BYTES
from tests.support import ddp_jobs


def trace(chunks: int, wrong: int, elements: int, world_size: int = 4) -> RankTrace:
    """Two all-reduces of so many chunks; `wrong` of the second one's were sent twice, three got lost besides."""
    records = [(tensor, chunk, WireWhat.SENT) for tensor in (7, 8) for chunk in range(chunks)]
    records += [(8, chunk, WireWhat.SENT) for chunk in range(wrong)]
    records += [(8, chunk, WireWhat.RESENT) for chunk in range(3)]
    tensor, chunk, what = np.array(records).T
    zeros = np.zeros(len(records))
    columns = {name: np.zeros(2, np.int64) for name in Events.__dataclass_fields__}
    columns |= {
        "collective": np.full(2, Collective.ALL_REDUCE), "what": np.full(2, What.COLLECTIVE),
        "bytes": np.full(2, 4.0 * elements * chunks),
    }  # fmt: skip
    return RankTrace(
        0, world_size, "", Path("made up"), "switchml", 0.0, [], [Lane("switchml", LaneKind.TRANSPORT)], [],
        Events(**columns), np.empty((0, 2), np.int32), np.empty((0, 2)), "switchml",
        wire=Wire(zeros, what, zeros.astype(int), tensor, chunk, zeros.astype(int), zeros.astype(int)),
    )  # fmt: skip


@pytest.mark.parametrize(("lanes", "elements"), repeated_rounds.ELEMENTS.items())
def test_packets_tell_how_many_rounds_went_again(lanes, elements):
    # Only all-reduces in which any went again count, and of these the chunks that were guessed.
    assert repeated_rounds.times_usual([trace(100, 20, elements)]) == pytest.approx(0.2 / REPEAT_SHARE[lanes])
    slots = repeated_rounds.guessed_bytes(4) // PAYLOAD_BYTES
    assert repeated_rounds.times_usual([trace(3 * slots, 64, elements)]) == pytest.approx(
        64 / slots / REPEAT_SHARE[lanes]
    )
    assert repeated_rounds.times_usual([trace(100, 0, elements)]) == 0


def test_a_trace_without_packets_does_not_tell():
    assert repeated_rounds.times_usual([replace(trace(10, 1, 256), wire=None)]) is None


def test_each_codec_has_the_price_of_its_lanes_and_the_trace_s_own_all_reduces_none():
    job = ddp_jobs.ddp([MIB] * 4, [0.01] * 4, ranks=4)
    model = Machine.of(job).network
    there = replace(model, algorithm="switchml")
    for lanes, share in REPEAT_SHARE.items():
        assert there.transfer(4, lanes).repeat_share == share and model.transfer(4, lanes).repeat_share == 0
        assert replace(there, repeat_factor=0.5).transfer(4, lanes).repeat_share == share / 2
    assert there.transfer(4, "").repeat_share == 0, "integers need no exponent"
    ours = replace(there, traced="switchml")
    assert ours.transfer(4).repeat_share == 0 < ours.transfer(4, "int16").repeat_share
    transfer = there.transfer(4)
    assert transfer.repeats_s(MIB / 2) == pytest.approx(REPEAT_SHARE["int32"] * MIB / 2 / transfer.bytes_per_s)
    assert transfer.repeats_s(9 * MIB) == transfer.repeats_s(1024 * 1024), "a chunk for each slot at most"


def test_what_waits_in_line_has_its_exponents_announced():
    transfer = transfers.TransferCost(0.0, 1e6, repeat_share=0.5, guessed_bytes=2e6)
    size = np.full(3, 3e6)
    # 1 s for 2 MB that are guessed, and 3 s for all; the second is ready 1 s before the first ends, so 1 MB is left to
    # guess; the third waits for longer than 2 MB take
    assert transfers.repeated_s(transfer, np.array([0.0, 3.0, 3.5]), size) == pytest.approx([1.0, 0.5, 0.0])
    apart = transfers.repeated_s(transfer, np.array([0.0, 10.0, 20.0]), size)
    assert apart == pytest.approx([1.0] * 3) == transfer.repeats_s(size)


def test_in_another_place_the_first_all_reduce_is_guessed():
    joined = ddp_jobs.ddp([MIB] * 4, [0.001] * 4, ranks=4, caps=[1], bytes_per_s=1e7)
    there = changes.allreduce(joined, "switchml")
    first, *others = transfers.transfer_s(there.costs)
    assert others == pytest.approx([others[0]] * 3)
    assert first - others[-1] == pytest.approx(network_of(there).transfer(4).repeats_s(MIB)) and first > others[0]
    back = changes.allreduce(there, "ring")
    np.testing.assert_allclose(transfers.transfer_s(back.costs), transfers.transfer_s(joined.costs))
