"""dPRO's timelines: ranks, transactions, the graph beside them."""

import json

import numpy as np
import pytest

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import LaneKind, What
from emulator.traces.readers.read import read
from switchml.errors import TraceError


def event(name, start_us, duration_us, place, step=0, **args):
    return {"name": name, "ph": "X", "ts": start_us, "dur": duration_us, "pid": place, "tid": "0", "cat": "op",
            "args": {"name": name, "step": step, **args}}  # fmt: skip


def timeline(path):
    events = []
    for step in range(2):
        for rank, place in enumerate(("host0.rank0", "host1.rank1")):
            at = 1000 * step + 5 * rank
            events += [
                event("FW.conv", at, 100, place, step),
                event("BW.conv", at + 100, 200, place, step),
                event("Comm.conv.w.NCCL_ALLREDUCE", at + 310, 50, place, step, size=4096),
                event("Comm.conv.w.SEND~>0_0_0_1", at + 320, 10, place, step),
                event("Comm.conv.w.RECV~>0_0_0_1", at + 322, 12, place, step),
                event("UPDATE_0.conv", at + 370, 30, place, step),
            ]
    path.write_text(json.dumps({"traceEvents": events}))


def test_ranks_transactions_and_steps(tmp_path):
    timeline(tmp_path / "bps_trace_final.json")
    first, second = read(tmp_path)
    assert [(trace.rank, trace.host, trace.world_size) for trace in (first, second)] == [
        (0, "host0", 2),
        (1, "host1", 2),
    ]
    assert first.steps.shape == (2, 2)
    assert second.epoch_s - first.epoch_s == pytest.approx(5e-6)
    events = first.events
    assert np.unique(events.what, return_counts=True)[1].sum() == len(events) == 12
    reduced = np.flatnonzero(events.what == What.COLLECTIVE)
    assert events.bytes[reduced].tolist() == [4096, 4096]
    assert events.sequence[reduced].tolist() == [0, 1]
    assert events.collective[reduced].tolist() == [Collective.ALL_REDUCE] * 2
    sent, received = (np.flatnonzero(events.what == what) for what in (What.SEND, What.RECV))
    assert first.groups[events.group[sent[0]]] == first.groups[events.group[received[0]]]
    assert events.peer[sent].tolist() == [1, 1]
    kinds = {first.lanes[lane].kind for lane in events.lane[reduced]}
    assert kinds == {LaneKind.TRANSPORT}


def test_the_graph_beside_it_gives_causes(tmp_path):
    timeline(tmp_path / "trace.json")
    (tmp_path / "dag.gml").write_text(
        'graph [\n  directed 1\n  node [\n    id 0\n    label "BW.conv"\n  ]\n  node [\n    id 1\n'
        '    label "Comm.conv.w.NCCL_ALLREDUCE"\n  ]\n  edge [\n    source 0\n    target 1\n  ]\n]\n'
    )
    trace = read(tmp_path)[0]
    names = [trace.names[name] for name in trace.events.name]
    assert [(names[a], names[b]) for a, b in trace.causes] == [("BW.conv", "Comm.conv.w.NCCL_ALLREDUCE")] * 2


def test_without_a_rank_in_it_it_is_none(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event("FW.a", 0, 1, "host0.rank0") | {"ph": "B"}]}))
    with pytest.raises(TraceError, match="no events of dPRO's"):
        read(tmp_path / "t.json")
