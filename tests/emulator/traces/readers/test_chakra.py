"""Chakra: what we write is read by Chakra's own reader, comes back to us as it was, and keeps the traced times when
only dependencies are followed."""

import dataclasses
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from emulator.jobs.workload.graph import Collective
from emulator.traces.events import LaneKind, What
from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chakra.chakra import load
from emulator.traces.readers.chakra.file import attribute, write_messages
from emulator.traces.readers.kineto import kineto
from emulator.traces.readers.read import read
from emulator.traces.writers.chakra import groups_node, slices, write
from switchml.errors import TraceError
from tests.support.kineto_data import published, same

PUBLISHED = ["alexnet", "mi250", "nccl_data", "sampled_rank-0"]


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", PUBLISHED)
def test_ours_come_back_as_they_were(tmp_path, name):
    trace = kineto.read(published(f"{name}.json.gz"))[0]
    write([trace], tmp_path)
    same(trace, read(tmp_path)[0])


@pytest.mark.parametrize("name", PUBLISHED)
def test_slices_cover_each_host_thread_once(name):
    trace = kineto.read(published(f"{name}.json.gz"))[0]
    events = trace.events
    cut = slices(trace)
    assert set(cut.event.tolist()) - {-1} == set(range(len(events)))
    # Without causes nothing is waiting: all of the time is in a slice.
    unwaited = slices(dataclasses.replace(trace, causes=np.empty((0, 2), np.int32)))
    for lane, about in enumerate(trace.lanes):
        if about.kind == LaneKind.HOST:
            mine, all_of_it = cut.lane == lane, unwaited.lane == lane
            ends_s = cut.start_s[mine] + cut.duration_s[mine]
            assert np.all(cut.start_s[mine][1:] >= ends_s[:-1] - 2e-6)
            span_s = events.end_s[events.lane == lane].max() - events.start_s.min()
            assert unwaited.duration_s[all_of_it].sum() == pytest.approx(span_s, abs=1e-6 * all_of_it.sum())


@pytest.mark.slow
def test_dependencies_alone_give_the_traced_times(tmp_path):
    """Followed one by one, nothing begins before it did, and the end is the traced one within 3 %."""
    trace = kineto.read(published("nccl_data.json.gz"))[0]
    write([trace], tmp_path)
    nodes = load(tmp_path / "chakra.0.et").nodes
    by_id, end_s = {node.id: node for node in nodes}, {}
    for first in nodes:
        stack = [first.id]
        while stack:
            node = by_id[stack[-1]]
            waiting = [dep for dep in node.deps if dep not in end_s]
            if waiting:
                stack.extend(waiting)
                continue
            end_s[stack.pop()] = max((end_s[dep] for dep in node.deps), default=0.0) + node.duration_s
    assert max(end_s.values()) == pytest.approx(trace.events.end_s.max(), rel=0.03)


def test_chakras_own_reader_reads_it(tmp_path):
    if importlib.util.find_spec("chakra") is None:
        pytest.skip("needs the package mlc-chakra (pip install mlc-chakra --no-deps)")
    trace = kineto.read(published("nccl_data.json.gz"))[0]
    write([trace], tmp_path)
    script = "import sys; from chakra.src.jsonizer.jsonizer import main; main()"
    arguments = ["--input_filename", str(tmp_path / "chakra.0.et"), "--output_filename", str(tmp_path / "j.json")]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, timeout=100)
    decoder, text, told, at = json.JSONDecoder(), (tmp_path / "j.json").read_text(), [], 0
    while at < len(text):
        message, at = decoder.raw_decode(text, at)
        told.append(message)
    ours = load(tmp_path / "chakra.0.et").nodes
    assert [(int(node.get("id", 0)), node["name"]) for node in told[1:]] == [(node.id, node.name) for node in ours]
    for its, node in zip(told[1:], ours, strict=True):
        assert [int(dep) for dep in its.get("ctrlDeps", []) + its.get("dataDeps", [])] == node.deps
        assert int(its.get("durationMicros", 0)) == round(node.duration_s * 1e6)
    sizes = [
        int(attr["int64Val"])
        for node in told[1:] if node.get("type") == "COMM_COLL_NODE"
        for attr in node["attr"] if attr["name"] == "comm_size"
    ]  # fmt: skip
    assert sizes == trace.events.bytes[trace.events.what == What.COLLECTIVE].tolist()


def foreign(path, nodes, version="1.0.0"):
    write_messages(path, [pb.GlobalMetadata(version=version), *nodes])


def test_timed_traces_of_others_become_traces(tmp_path):
    nodes = [groups_node([("tp", [0, 1])], 2)]
    mm = pb.Node(id=5, name="mm", type=pb.COMP_NODE, start_time_micros=10, duration_micros=20)
    mm.attr.extend([attribute("is_cpu_op", False), attribute("stream", 7)])
    reduce = pb.Node(
        id=6, name="gather", type=pb.COMM_COLL_NODE, start_time_micros=30, duration_micros=5, ctrl_deps=[5]
    )
    told = {"comm_type": int(pb.ALL_GATHER), "comm_size": 100, "pg_name": "0", "is_cpu_op": False, "stream": 8}
    reduce.attr.extend(attribute(name, value) for name, value in told.items())
    foreign(tmp_path / "x.1.et", [*nodes, mm, reduce])
    trace = read(tmp_path)[0]
    assert (trace.rank, trace.format, trace.world_size) == (1, "chakra", 2)
    at = int(np.flatnonzero(trace.events.collective)[0])
    assert trace.events.collective[at] == Collective.ALL_GATHER
    assert trace.events.bytes[at] == 200  # all that is gathered; Chakra counts one rank's part
    assert trace.groups[trace.events.group[at]].ranks == (0, 1)
    assert trace.causes.tolist() == [[0, 1]]


def test_traces_without_times_are_sent_to_emulate(tmp_path):
    foreign(tmp_path / "x.0.et", [pb.Node(id=1, name="a", type=pb.COMP_NODE, duration_micros=4)])
    with pytest.raises(TraceError, match="trace emulate"):
        read(tmp_path)


def test_a_truncated_file_says_where(tmp_path):
    path = tmp_path / "x.0.et"
    foreign(path, [pb.Node(id=i, name=f"node {i}", type=pb.COMP_NODE, start_time_micros=1 + i) for i in range(20)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(TraceError, match=f"truncated: it breaks off in message 20, at byte {len(whole) - 5:,}"):
        read(path)


def test_a_file_without_a_rank_in_its_name_needs_one(tmp_path):
    foreign(tmp_path / "x.et", [pb.Node(id=1, name="a", type=pb.COMP_NODE, start_time_micros=4)])
    with pytest.raises(TraceError, match="--rank"):
        read(tmp_path / "x.et")
    assert read(tmp_path / "x.et", rank=3)[0].rank == 3
