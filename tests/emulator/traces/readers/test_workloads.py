"""What there is to do, played on a cluster: sums that can be worked out by hand."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from emulator.cluster import cluster as clusters
from emulator.cluster import kernels
from emulator.cluster.collectives import cost
from emulator.cluster.topology import GroupLayout, place
from emulator.jobs import imported as priced
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.graph import Collective
from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chakra.file import attribute, write_messages
from emulator.traces.readers.read import read, read_workload
from emulator.traces.writers import chakra as chakra_write
from emulator.traces.writers.chakra import groups_node
from switchml.cli.main import cli
from switchml.errors import GraphError, TraceError
from tests.support.commands import told
from tests.support.kineto_data import span, write

CLUSTER = "a100-dgx"
SIMAI = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 64 checkpoints: 0 \
checkpoint_initiates: 0
2
first\t-1\t1000000\tALLREDUCE\t50000000\t2000000\tNONE\t0\t500000\tALLGATHER_DP_EP\t90000000\t100
second\t-1\t3000000\tNONE\t0\t4000000\tALLTOALL_EP\t70000000\t600000\tREDUCESCATTER\t80000000\t100
"""


def played_s(workload):
    graph = workload.graph
    check(graph)
    return replay(graph, priced.costs(graph, clusters.load(CLUSTER), workload.strides)).makespan_s


def test_simais_loop_is_forward_then_input_then_weight_gradients(tmp_path):
    (tmp_path / "w.txt").write_text(SIMAI)
    workload = read_workload(tmp_path / "w.txt")
    cluster = clusters.load(CLUSTER)
    tensor = cost(cluster, "all_reduce", 50e6, place(8, 1, 8)).seconds
    experts = cost(cluster, "all_to_all", 70e6, place(2, 8, 8)).seconds
    scatter = cost(cluster, "reduce_scatter", 80e6, place(8, 8, 8)).seconds
    gather = cost(cluster, "all_gather", 90e6, place(4, 16, 8)).seconds
    # Backward begins with the last layer; its gradients' scatter does not hold up the first layer's compute.
    backward_s = 4e-3 + experts + 0.6e-3
    end_of_compute_s = 1e-3 + tensor + 3e-3 + backward_s + 2e-3 + 0.5e-3
    scattered_s = 1e-3 + tensor + 3e-3 + backward_s + scatter
    assert played_s(workload) == pytest.approx(max(end_of_compute_s, scattered_s) + gather, rel=1e-9)
    assert workload.world_size == 64


@pytest.mark.parametrize(("change", "complaint"), [
    (("2\n", "3\n", 1), "truncated: it announces 3 layers and has 2"),
    (("ALLTOALL_EP", "ALLTOSOME"), "line 4: unknown communication ALLTOSOME"),
    (("\t100\nsecond", "\nsecond"), "line 3: 11 columns where 12 are expected"),
    (("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "DATA"), "training loop DATA"),
])  # fmt: skip
def test_simais_text_that_makes_no_sense(tmp_path, change, complaint):
    (tmp_path / "w.txt").write_text(SIMAI.replace(*change) if change[0] != "2\n" else SIMAI.replace("\n2\n", "\n3\n"))
    with pytest.raises(TraceError, match=complaint):
        read_workload(tmp_path / "w.txt")


def node(number, name, kind, deps=(), micros=0, **attributes):
    made = pb.Node(id=number, name=name, type=kind, data_deps=deps, duration_micros=micros)
    made.attr.extend(attribute(key, value) for key, value in attributes.items())
    return made


def write_job(folder, nodes_of_rank):
    for rank, nodes in nodes_of_rank.items():
        write_messages(folder / f"job.{rank}.et", [pb.GlobalMetadata(version="0.0.4"), *nodes])
    return read_workload(folder)


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize(
    ("kind", "operation", "share"),
    [(pb.ALL_REDUCE, "all_reduce", 1), (pb.ALL_GATHER, "all_gather", None), (pb.REDUCE_SCATTER, "reduce_scatter", 1),
     (pb.ALL_TO_ALL, "all_to_all", 1)],
)  # fmt: skip
def test_one_collective_takes_what_it_costs(tmp_path, ranks, kind, operation, share):
    """Like ASTRA-sim's microbenchmarks: one node a rank, 1 MB put in."""
    one = {"is_cpu_op": False, "comm_type": int(kind), "comm_size": 1 << 20}
    workload = write_job(tmp_path, {rank: [node(0, operation, pb.COMM_COLL_NODE, **one)] for rank in range(ranks)})
    size = (share or ranks) * (1 << 20)
    expected = cost(clusters.load(CLUSTER), operation, size, place(ranks, 1, 8)).seconds
    assert played_s(workload) == pytest.approx(expected, rel=1e-9)
    assert f"{ranks} communication nodes wait for nothing" in workload.assumptions[0]


def test_chakras_json_is_the_same_work(tmp_path):
    nodes = [
        {"Id": 3, "Name": "f", "NodeType": 4, "runtime": 250, "is_cpu_op": True, "data_deps": []},
        {
            "Id": 4,
            "Name": "r",
            "NodeType": 7,
            "comm_type": 0,
            "comm_size": 1 << 24,
            "is_cpu_op": False,
            "data_deps": [3],
        },
    ]
    for rank in range(4):
        (tmp_path / f"chakra.{rank}.json").write_text(json.dumps({"workload_graph": nodes}, indent=1))
    expected = 250e-6 + cost(clusters.load(CLUSTER), "all_reduce", 1 << 24, place(4, 1, 8)).seconds
    assert played_s(read_workload(tmp_path)) == pytest.approx(expected, rel=1e-9)


def test_a_ring_of_sends_and_receives_does_not_wait_for_itself(tmp_path):
    """Every rank sends first and then receives, as custom collectives do: a send does not block."""
    size, ranks, rounds = 1 << 20, 4, 6
    jobs = {}
    for rank in range(ranks):
        nodes = []
        for turn in range(rounds):
            to, source = (rank + 1) % ranks, (rank - 1) % ranks
            before = [2 * turn - 1] if turn else []
            nodes.append(node(2 * turn, "send", pb.COMM_SEND_NODE, before, comm_size=size, comm_dst=to, comm_tag=turn))
            nodes.append(node(2 * turn + 1, "recv", pb.COMM_RECV_NODE, [2 * turn], comm_size=size, comm_src=source,
                              comm_tag=turn))  # fmt: skip
        jobs[rank] = nodes
    workload = write_job(tmp_path, jobs)
    step = cost(clusters.load(CLUSTER), "p2p", size, GroupLayout(2, 1, 2, 1)).seconds
    assert played_s(workload) == pytest.approx(rounds * step, rel=1e-6)


def test_compute_lasts_as_it_says_or_is_bound_by_flops_or_bytes(tmp_path):
    cluster = clusters.load(CLUSTER)
    big, wide = 1e13, 10_000_000_000
    nodes = [
        node(1, "known", pb.COMP_NODE, micros=500, is_cpu_op=False),
        node(2, "flops", pb.COMP_NODE, [1], is_cpu_op=False, num_ops=int(big), tensor_size=1000),
        node(3, "bytes", pb.COMP_NODE, [2], is_cpu_op=False, num_ops=1000, tensor_size=wide),
    ]
    workload = write_job(tmp_path, {0: nodes})
    flops_s = big / cluster.device.sustained("fp16", cluster.software.gemm_efficiency)
    bytes_s = float(kernels.seconds(np.array([kernels.memory(wide)]), cluster.device, cluster.software)[0])
    assert played_s(workload) == pytest.approx(500e-6 + flops_s + bytes_s, rel=1e-6)
    assert math.isnan(workload.graph.op_types.seconds[1])


def test_groups_come_from_the_files_and_absent_ranks_do_what_others_do(tmp_path):
    reduce = {"is_cpu_op": False, "comm_type": int(pb.ALL_REDUCE), "comm_size": 1 << 24, "pg_name": "1"}
    groups = groups_node([("all", []), ("data parallel", [0, 8, 16, 24])], 32)
    nodes = [
        groups,
        node(1, "f", pb.COMP_NODE, micros=10, is_cpu_op=False),
        node(2, "r", pb.COMM_COLL_NODE, [1], **reduce),
    ]
    workload = write_job(tmp_path, {0: nodes, 8: nodes})
    assert workload.world_size == 32
    assert workload.graph.groups.size.tolist() == [4]
    assert "30 of 32 ranks have no file" in workload.assumptions[0]
    expected = 10e-6 + cost(clusters.load(CLUSTER), "all_reduce", 1 << 24, place(4, 8, 8)).seconds
    assert played_s(workload) == pytest.approx(expected, rel=1e-6)
    assert workload.graph.op_types.collective.max() == Collective.ALL_REDUCE


def test_a_trace_that_we_wrote_is_played_again_with_communication_priced(tmp_path):
    """Gloo's threads take the all-reduces in another order on each rank; they meet all the same."""
    float_ = {"Input type": ["float"], "Input Dims": [[1 << 20]]}
    for rank in range(2):
        events = [span("ProfilerStep#1", 0, 1000, cat="user_annotation")]
        for at in range(4):
            thread = 2 + (at in (0, 3) if rank else at in (0, 2))
            ids = [{"Record function id": 2 * at + which} for which in (1, 2)]
            events.append(span("c10d::allreduce_", 100 * at + 10, 20, args=ids[0]))
            events.append(span("gloo:all_reduce", 100 * at + 20, 70, tid=thread, cat="user_annotation",
                               args=ids[1] | float_))  # fmt: skip
        write(tmp_path / f"rank-{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    (tmp_path / "et").mkdir()
    chakra_write.write(read(tmp_path), tmp_path / "et")
    workload = read_workload(tmp_path / "et")
    assert (workload.graph.ops.transfer >= 0).sum() == 8
    assert len(workload.graph.transfers) == 4
    step = cost(clusters.load(CLUSTER), "all_reduce", 4 << 20, place(2, 1, 8)).seconds
    assert 1e-3 <= played_s(workload) <= 1e-3 + 4 * step


def test_what_can_never_run_is_named(tmp_path):
    nodes = [node(1, "hen", pb.COMP_NODE, [2], micros=1), node(2, "egg", pb.COMP_NODE, [1], micros=1)]
    with pytest.raises(GraphError, match="cycle: (hen|egg)"):
        played_s(write_job(tmp_path, {0: nodes}))


def test_the_command_prints_what_it_found_and_assumed(tmp_path):
    (tmp_path / "w.txt").write_text(SIMAI)
    arguments = ["trace", "emulate", str(tmp_path / "w.txt"), "--cluster", CLUSTER]
    said = told(*arguments)
    assert said["ranks"] == 64
    assert said["iteration_s"] == pytest.approx(played_s(read_workload(tmp_path / "w.txt")))
    assert "one accelerator stands for all 64" in CliRunner().invoke(cli, arguments).stdout
    ran = CliRunner().invoke(cli, [*arguments, "--precision", "fp17"])
    assert (ran.exit_code, "did you mean fp16" in ran.stderr) == (1, True)


def test_control_dependencies_of_others_order_nothing(tmp_path):
    """As in Chakra's own tests, where they lead in circles with the others."""
    hen, egg = node(1, "hen", pb.COMP_NODE, [2], micros=3), node(2, "egg", pb.COMP_NODE, micros=4)
    egg.ctrl_deps.append(1)
    workload = write_job(tmp_path, {0: [hen, egg]})
    assert played_s(workload) == pytest.approx(7e-6)
    assert workload.assumptions == [
        "1 control dependencies are left out: data dependencies order nodes, as in ASTRA-sim"
    ]
    rows = [{"Id": 1, "Name": "hen", "NodeType": 4, "runtime": 3, "data_deps": [2], "ctrl_deps": []},
            {"Id": 2, "Name": "egg", "NodeType": 4, "runtime": 4, "data_deps": [], "ctrl_deps": [1]}]  # fmt: skip
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "job.0.json").write_text(json.dumps({"workload_graph": rows}))
    assert played_s(read_workload(tmp_path / "json")) == pytest.approx(7e-6)


def test_nodes_without_sizes_are_named(tmp_path):
    nodes = [
        node(1, "mm", pb.COMP_NODE, is_cpu_op=False),
        node(2, "load", pb.MEM_LOAD_NODE, is_cpu_op=False),
        node(3, "reduce", pb.COMM_COLL_NODE, [1], micros=5, is_cpu_op=False, comm_type=int(pb.ALL_REDUCE)),
        *(node(number, f"sum {number}", pb.COMM_COLL_NODE, is_cpu_op=False) for number in range(4, 9)),
    ]
    workload = write_job(tmp_path, {0: nodes})
    assert workload.assumptions == [
        "each of 6 communication nodes has no comm_size, and counts as compute of its rank: 3 (reduce) of rank 0, "
        "4 (sum 4) of rank 0, 5 (sum 5) of rank 0, 6 (sum 6) of rank 0, …",
        "each of 2 nodes has neither a duration nor num_ops or tensor_size, and counts as empty: 1 (mm) of rank 0, "
        "2 (load) of rank 0",
    ]
    assert workload.graph.op_types.seconds[2] == pytest.approx(5e-6)


def test_how_many_accelerators_simais_workload_has(tmp_path):
    path, open_path = tmp_path / "w.txt", tmp_path / "open.txt"
    path.write_text(SIMAI)
    open_path.write_text(SIMAI.replace("all_gpus: 64 ", ""))
    with pytest.raises(TraceError, match="line 1: no all_gpus.*give --gpus N, a multiple of 8"):
        read_workload(open_path)
    assert played_s(read_workload(open_path, 64)) == played_s(read_workload(path))
    assert read_workload(open_path, 128).world_size == 128
    for given, complaint in ((12, "12 accelerators are not divisible by tp 8"), (0, "0 accelerators")):
        with pytest.raises(TraceError, match=complaint):
            read_workload(open_path, given)
    with pytest.raises(TraceError, match="all_gpus is 64, but --gpus 8 was given"):
        read_workload(path, 8)
    arguments = ["trace", "emulate", str(open_path), "--cluster", CLUSTER, "--gpus", "64"]
    assert told(*arguments)["ranks"] == 64


def test_gpus_are_no_matter_of_chakras_workloads(tmp_path):
    write_job(tmp_path, {0: [node(1, "mm", pb.COMP_NODE, micros=3)]})
    with pytest.raises(TraceError, match="--gpus is for SimAI's workload"):
        read_workload(tmp_path, 8)
