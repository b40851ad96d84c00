"""Small files of every kind that a command reads, damaged at random: a reader takes one, or refuses it with one of the
project's errors; no other exception, no hang, no more than 500 MB."""

import copy
import gzip
import json
import random
import struct

import numpy as np
import pytest

from emulator.cluster import cluster, tables
from emulator.jobs.description import read_tables, request
from emulator.jobs.workload import models
from emulator.networks.netsim import config
from emulator.p4switch.ports.pcap import PcapReader
from emulator.p4switch.program.loader import loader
from emulator.p4switch.stf.stf import run_file
from emulator.traces.join import join
from emulator.traces.readers import native
from emulator.traces.readers.chakra import chakra_pb2 as pb
from emulator.traces.readers.chakra.file import attribute, write_messages
from emulator.traces.readers.read import read, read_workload
from emulator.traces.summary import of_job
from emulator.traces.writers import chakra
from host_agent.packet_log import PACKET
from host_agent.pytorch import settings
from host_agent.recording import CALL
from switchml.errors import LONGEST_MESSAGE, SwitchMLError
from tests.support.bounded import bounded
from tests.support.kineto_data import span
from tests.support.p4_programs import PATHS
from tests.support.traced_jobs import Job, traced

WEIRD = [None, True, -1, 0, 10**30, -(10**18), 1e308, 0.5, "", "x", "[/foo]\x1b[2J", "9" * 5000, [], {}, [[]], [1, "a"]]
WEIRD_TOML = ["-1", "0", "10", "1e308", "nan", "-inf", "'x'", "''", "[]", "[[1]]", "{a = 1}", "true", "9" * 400]
WEIRD_TOML += ["9" * 5000, "1979-05-27", '"\\u001b[2J[/foo]"', "99999999999999"]


def read_traces(folder):
    found = read(folder)
    json.dumps(of_job(found))
    join(found)


def events(rank):
    """Kineto's: computing, a collective on the host and one of NCCL's, a copy."""
    float_ = {"Input type": ["float"], "Input Dims": [[100]]}
    nccl = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float", "Group size": 2,
            "Process Group Name": "1", "Process Group Ranks": "[0, 1]", "correlation": 7, "stream": 20}  # fmt: skip
    return [
        span("ProfilerStep#1", 0, 400, cat="user_annotation"),
        span("aten::mm", 1, 50, args={"Record function id": 1}),
        span("c10d::allreduce_", 50, 10, args={"Record function id": 2, **float_}),
        span("gloo:all_reduce", 70, 100 + rank, tid=2, cat="user_annotation", args={"Record function id": 3, **float_}),
        span("cudaLaunchKernel", 200, 5, cat="cuda_runtime", args={"correlation": 7}),
        span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 210, 30, tid=20, pid=0, cat="kernel", args=nccl),
        span(
            "Memcpy HtoD", 250, 30, tid=7, pid=0, cat="gpu_memcpy", args={"bytes": 1000, "correlation": 8, "stream": 7}
        ),
        span("switchml.all_reduce#0", 300, 9, cat="user_annotation"),
        span("switchml.wait", 310, 60, cat="user_annotation"),
        {"ph": "M", "name": "thread_name", "pid": 10, "tid": 1, "args": {"name": "main"}},
    ]


def kineto(rank):
    head = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2, "backend": "gloo", "pg_config": []},
            "deviceProperties": [{"id": 0, "name": "GPU"}], "baseTimeNanoseconds": 10**18}  # fmt: skip
    return head | {"traceEvents": events(rank)}


def execution_trace():
    tensor = [1, 2, 0, 100, 4, "cpu"]
    node = {"id": 1, "name": "aten::mm", "inputs": {"values": [tensor]}, "outputs": {"values": [tensor]},
            "attrs": [{"name": "rf_id", "type": "uint64", "value": 1}]}  # fmt: skip
    return {"schema": "1.1.1-chakra.0.0.4", "nodes": [node, node | {"id": 2}]}


def about():
    clock = [{"monotonic_ns": 0, "unix_ns": 10**18}, {"monotonic_ns": 10**6, "unix_ns": 10**18 + 10**6}]
    agent = {"job": "j", "tag": 5, "rank": 0, "ranks": [0, 1], "transport": "udp", "wire": "int32", "packets_lost": 1}
    ddp = {"buckets": [[0]], "parameters": {"w": {"bytes": 400}}, "gradients": ["w"], "bucket_cap_bytes": 1 << 20}
    return {"format": "switchml", "version": 1, "rank": 0, "world_size": 2, "host": "h", "backend": "switchml",
            "clock": clock, "agents": [agent], "ddp": [ddp], "versions": {"torch": "2"}, "codec": "",
            "iterations": [{"number": 1, "kind": "captured"}],
            "pings": {"at_ns": [5], "message": [1], "sent": [True]}}  # fmt: skip


def sizes():
    call = {"name": "gloo:all_reduce", "at_ns": 10**18 + 70_000, "group": "0", "in": [[100]], "in_types": ["float"]}
    return {"groups": {"0": [0, 1]}, "calls": [call], "parameters": [{"name": "w", "bytes": 400}], "gradients": [0]}


def capture(folder):
    (folder / "rank-0.about.json").write_text(json.dumps(about()))
    (folder / "rank-0.sizes.json").write_text(json.dumps(sizes()))
    (folder / "rank-0.json.gz").write_bytes(gzip.compress(json.dumps(kineto(0)).encode()))
    calls, packets = np.zeros(1, CALL), np.zeros(3, PACKET)
    calls["submitted"], calls["done"], packets["at"] = 300_000, 360_000, 310_000
    np.savez_compressed(folder / "rank-0.wire.npz", calls_0=calls, packets_0=packets)


def dpro():
    def event(name, at, rank):
        return {"name": name, "ph": "X", "ts": at, "dur": 9, "pid": f"host0.rank{rank}", "tid": "0", "cat": "op",
                "args": {"name": name, "step": 0, "size": 4096}}  # fmt: skip

    names = ("FW.conv", "BW.conv", "Comm.conv.w.NCCL_ALLREDUCE", "Comm.conv.w.SEND~>0_1", "Comm.conv.w.RECV~>0_1")
    return {"traceEvents": [event(name, 10 * at, rank) for rank in (0, 1) for at, name in enumerate(names)]}


def chakra_json():
    node = {"Id": 1, "Name": "gemm", "NodeType": 4, "runtime": 5, "ctrl_deps": [], "data_deps": []}
    reduce = {
        "Id": 2, "Name": "ar", "NodeType": 7, "data_deps": [1], "comm_type": 0, "comm_size": 1024, "world_size": 2,
    }  # fmt: skip
    return {"workload_graph": [node, reduce]}


def write_chakra(folder):
    chakra.write(traced(Job(ranks=1, layers=2, buckets=(1, 1)), iterations=1).traces, folder)


def write_untimed(folder):
    group = [attribute("comm_type", 0), attribute("comm_size", 100), attribute("world_size", 2)]
    nodes = [pb.Node(id=1, name="gemm", type=pb.COMP_NODE, duration_micros=5),
             pb.Node(id=2, name="ar", type=pb.COMM_COLL_NODE, data_deps=[1], attr=group)]  # fmt: skip
    write_messages(folder / "chakra.0.et", [pb.GlobalMetadata(version="1.0.0"), *nodes])


def write_native(folder):
    native.write(traced(Job(ranks=1, layers=2, buckets=(1, 1)), iterations=2).traces[0], folder / "rank-0.npz")


def dump(name, value):
    return lambda folder: (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def kineto_and_execution_trace(folder):
    dump("rank-0.json", kineto(0))(folder)
    dump("rank-0.et.json", execution_trace())(folder)


def pcap(folder):
    frame = bytes(60)
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1)
    (folder / "x.pcap").write_bytes(head + 3 * (struct.pack("<IIII", 1, 2, 60, 60) + frame))


def read_pcap(path):
    reader = PcapReader(path)
    try:
        while reader.read() is not None:
            pass
    finally:
        reader.close()


def read_job(path):
    spec = request(read_tables(path), str(path))
    spec.job.fit(models.load.__wrapped__(spec.model))
    cluster.load.__wrapped__(spec.cluster)


def read_model(path):
    model = models.load.__wrapped__(str(path))
    _ = model.parameters, model.flops_per_sample(1)


SIMAI = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 2 pp: 1 all_gpus: 64
2
first\t-1\t1000000\tALLREDUCE\t50000000\t2000000\tNONE\t0\t500000\tALLGATHER_DP_EP\t90000000\t100
second\t-1\t3000000\tNONE\t0\t4000000\tALLTOALL_EP\t70000000\t600000\tREDUCESCATTER\t80000000\t100
"""
JOB = """model = "gpt2-124m"
cluster = "a100-dgx"
[job]
gpus = 8
tp = 2
zero = 1
bucket_bytes = 1e6
[network]
loss = 0.01
[data]
loader = "lru"
[memory]
pruned = 0.5
[switch]
slots = 128
"""
NETWORK = """seed = 3
[link]
rate_bps = 1e9
loss = 0.01
[racks]
hosts = 2
[slow_hosts.1]
rate_bps = 1e8
[[jobs]]
workers = 4
size_bytes = 4096
late_ranks = {1 = 0.5}
hosts = [0, 1, 2, 3]
"""
MODEL = "title = 't'\nsource = 's'\nlayers = 2\nhidden = 64\nheads = 2\nvocabulary = 99\nsequence = 8\nexperts = 2\n"
CLUSTER = (cluster.FOLDER / "a100-hdr800.toml").read_text()
SETTINGS = """[process_group]
backend = "switchml"
[environment]
SWITCHML_WIRE = "int16"
[ddp]
bucket_cap_mb_list = [1.5, 4.0]
[compression]
codec = ["none", "fp16"]
memory = "residual"
"""
NCCL = "".join(
    f"{1 << n} {1 << (n - 2)} float sum -1 {n}.5 {a:.2f} {1.75 * a:.2f} 0\n"
    for n in range(10, 20)
    for a in [(1 << n) / (n + 0.5) / 1e3]
)
DNN = "layer_index, numel, forward_pass_ns, backward_pass_ns\n0, 1000, 5000, 9000\n1, 20, 30, 40\n"
STF = "add ingress.t hdr.a:1 ingress.act(port:2)\npacket 0 010203040506 0708090a0b0c 0d0e\nexpect 1 0102$\nwait\n"

KINDS = {
    "a Kineto trace": (dump("rank-0.json", kineto(0)), read_traces),
    "a Kineto trace and torch's execution trace": (kineto_and_execution_trace, read_traces),
    "a capture": (capture, read_traces),
    "our own trace": (write_native, read_traces),
    "a Chakra trace": (write_chakra, read_traces),
    "a Chakra workload": (write_untimed, read_workload),
    "a Chakra workload in JSON": (dump("chakra.0.json", chakra_json()), read_workload),
    "dPRO's timeline": (dump("bps.json", dpro()), read_traces),
    "SimAI's workload": (dump("w.txt", SIMAI), read_workload),
    "a job": (dump("job.toml", JOB), lambda folder: read_job(folder / "job.toml")),
    "a network": (dump("net.toml", NETWORK), lambda folder: config.load(folder / "net.toml")),
    "a model": (dump("model.toml", MODEL), lambda folder: read_model(folder / "model.toml")),
    "a cluster": (dump("c.toml", CLUSTER), lambda folder: cluster.load.__wrapped__(str(folder / "c.toml"))),
    "settings": (dump("s.toml", SETTINGS), lambda folder: settings.load(folder / "s.toml")),
    "a table of nccl-tests": (dump("x_8gpu.txt", NCCL), lambda folder: tables.read(folder / "x_8gpu.txt")),
    "a table of layers": (dump("dnn.csv", DNN), lambda folder: models.read_dnn_benchmark(folder / "dnn.csv")),
    "a P4 program": (dump("p.json", PATHS["exact"].read_text()), lambda folder: loader.load(folder / "p.json")),
    "STF": (dump("t.stf", STF), lambda folder: run_file(loader.load(PATHS["exact"]), folder / "t.stf")),
    "a packet capture": (pcap, lambda folder: read_pcap(folder / "x.pcap")),
}


def places(value, path=()):
    """Paths to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def mutated_json(data, draw):
    value = json.loads(data)
    for _ in range(draw.choice((1, 1, 1, 3))):
        *way, last = draw.choice(list(places(value)) or [()])
        at = value
        for key in way:
            at = at[key]
        if draw.random() < 0.2 and isinstance(at, dict):
            del at[last]
        else:
            at[last] = copy.deepcopy(draw.choice(WEIRD))
        if not list(places(value)):
            break
    return json.dumps(value).encode()


def mutated_toml(data, draw):
    lines = data.decode().splitlines()
    at = draw.randrange(len(lines))
    if "=" in lines[at] and draw.random() < 0.8:
        lines[at] = lines[at].partition("=")[0] + "= " + draw.choice(WEIRD_TOML)
    else:
        lines.insert(at, draw.choice(lines))
    return "\n".join(lines).encode()


def mutated_bytes(data, draw):
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 1, 4, 100))
        what = draw.randrange(4)
        if what == 0:
            data[at : at + length] = draw.randbytes(length)
        elif what == 1:
            del data[at : at + length]
        elif what == 2:
            data[at:at] = data[at : at + length] * draw.choice((1, 1, 50))
        else:
            data[at : at + 1] = draw.choice((b"\x00", b"\xff", b"9", b'"', b"{", b"-", b"\x1b", b"\n"))
        data = data or bytearray(b"x")
    return bytes(data)


def mutated_npz(path, draw):
    with np.load(path) as file:
        arrays = dict(file)
    name = draw.choice(list(arrays))
    array = arrays[name].copy()
    what = draw.randrange(5)
    if what == 0 and array.size:
        array.view(np.uint8).reshape(-1)[draw.randrange(array.nbytes)] ^= 1 << draw.randrange(8)
    elif what == 1:
        array = array[: len(array) // 2]
    elif what == 2:
        array = draw.choice((np.array(7), np.zeros((3, 3)), array.astype("S9") if not array.dtype.names else array[:0]))
    elif what == 3:
        del arrays[name]
    elif array.dtype.names:
        array[draw.choice(array.dtype.names)][...] = draw.choice((-1, 1, 0))
    else:
        array[...] = draw.choice((0, 1, 100))
    if name in arrays:
        arrays[name] = array
    np.savez_compressed(path, **arrays)


def mutate(path, draw):
    """Damage a file: its meaning where that is known, or its bytes."""
    by_meaning = draw.random() < 0.6
    if path.suffix == ".npz" and by_meaning:
        mutated_npz(path, draw)
        return
    data = path.read_bytes()
    is_packed = path.suffix == ".gz" and draw.random() < 0.8
    data = gzip.decompress(data) if is_packed else data
    if by_meaning and (path.suffix == ".json" or is_packed):
        data = mutated_json(data, draw)
    elif by_meaning and path.suffix == ".toml":
        data = mutated_toml(data, draw)
    else:
        data = mutated_bytes(data, draw)
    path.write_bytes(gzip.compress(data) if is_packed else data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_files(kind, tmp_path, attempts):
    write, reader = KINDS[kind]
    write(tmp_path)
    originals = {path: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    reader(tmp_path)  # whole, it is read; kernels are compiled
    count = attempts.scaled(60)
    for number in range(count):
        draw = random.Random(f"{kind} {number}")
        for path, data in originals.items():
            path.write_bytes(data)
        mutate(draw.choice(list(originals)), draw)
        with bounded(seconds=20):
            try:
                reader(tmp_path)
            except SwitchMLError as error:
                assert 0 < len(str(error)) <= LONGEST_MESSAGE, number
            except Exception as error:
                raise AssertionError(f"mutation {number} of {kind}: {error!r}") from error
    attempts.record(f"damaged files: {kind}", count)
