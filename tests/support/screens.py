"""What each command prints, from results that need no work: recorded, or of tiny jobs. `SCREENS` has a case for every
command of `switchml`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from click.testing import CliRunner

from switchml.cli.main import cli

LONG = "a-job-with-a-name-that-somebody-took-the-time-to-write-out-in-full"
KERNEL = "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_64x3_tn_align8>"
SCREENS: dict[str, Callable[[Path], None]] = {}
"""Command → what prints its main screen; gets a folder to work in."""


def screen(*names: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def add(function: Callable[[Path], None]) -> Callable[[Path], None]:
        SCREENS.update(dict.fromkeys(names, function))
        return function

    return add


def run(*arguments: object, **environment: str) -> None:
    """Print what a command prints."""
    done = CliRunner(env=environment).invoke(cli, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    print(done.output)


# switchml


@screen("aggregate", "control")
def ready(_: Path) -> None:
    from switchml.cli.serving import say_ready

    names = ("control", "events", "tunnel", "metrics", "data")
    say_ready("switchml aggregator", {name: f"192.168.100.100:{50_000 + n}" for n, name in enumerate(names)})


def status_reply():
    from switchml.control import v2_pb2

    reply = v2_pb2.StatusReply(version="2.1.0", uptime_s=93_784.2, events_address="192.168.100.100:50100")
    reply.dataplane.kind, reply.dataplane.slots_allocated, reply.dataplane.slot_capacity = "software", 16384, 65536
    reply.dataplane.address.ip, reply.dataplane.address.port = "192.168.100.100", 48864
    reply.refused["refused_window"] = 1_234_567
    reply.hidden_jobs = 2
    for number, (name, state) in enumerate(((LONG, "running"), ("resnet", "forming"), ("old", "failed")), 1):
        job = reply.jobs.add(name=name, job_id=number, state=state, world_size=16, protocol=2, slots=16384)
        job.slots_in_use, job.payload_bytes, job.goodput_bps, job.age_s = 16384, 1024, 93.7e9, 7_500 * number
        job.reason = "rank 13 was lost: nothing heard for 10 s" if state == "failed" else ""
        job.missing.extend([13, 14, 15] if state == "forming" else [])
        for rank in range(2):
            one = job.ranks.add(rank=rank, state="joined" if rank else "leaving", host="gpu-node-001", pid=1_234_567)
            one.address.ip, one.address.port = "192.168.100.101", 40_000 + rank
            one.rates["received_packets"] = 9_999_999.0
            for name in ("accepted", "retransmissions", "received_packets", "sent_packets"):
                one.counters[name] = 123_456_789
            for name in ("steps", "buffer_hits", "storage_samples", "reads", "read_bytes", "waits", "wait_s"):
                one.loading[name] = 123_456_789
    return reply


@screen("status")
def status(_: Path) -> None:
    from switchml.cli import status

    status.show(status_reply())


@screen("examples")
def examples(_: Path) -> None:
    run("examples")


@screen("docs")
def docs(folder: Path) -> None:
    from switchml import share
    from switchml.cli.docs import _digest

    built = folder / "cache" / f"docs-{_digest(share.DOCS)}"
    built.mkdir(parents=True)
    (built / "index.html").touch()
    run("docs", "--no-open", SWITCHML_CACHE_DIR="cache")


# host_agent


@screen("doctor")
def doctor(_: Path) -> None:
    from host_agent.checkup import Finding
    from host_agent.cli import doctor

    doctor.show(
        [
            Finding("machine", "ok", "Linux 6.1.0-18-amd64-with-a-suffix, x86_64, 256 cores, 2,048 GiB of memory"),
            Finding("simple_switch", "missing", "not on PATH", "the original BMv2 switch: build github.com/p4lang/"
                    "behavioral-model"),
            Finding("all-reduce", "broken", "rank 0: JobError: nobody answered within 30 s", "please report this"),
        ]
    )  # fmt: skip


@screen("trace capture")
def capture(folder: Path) -> None:
    from host_agent.cli import trace_capture

    kinds = ["plain", "plain", "captured", "captured"] * 3
    steps = [{"kind": kind, "start_unix_ns": n * 10**7, "end_unix_ns": n * 10**7 + 9_876_543, "cpu_ns": 8_765_432}
             for n, kind in enumerate(kinds)]  # fmt: skip
    about = {"host": "gpu-node-0123456789", "backend": "switchml", "world_size": 4, "skip": 0, "pairs": 3}
    about |= {"iterations": steps, "captures": [{"start_s": 0.123, "stop_s": 1.234}]}
    about["agents"] = [{"calls": 12_345, "packets": 123_456_789, "packets_lost": 12_345}]
    abouts = [about | {"rank": 0}, about | {"rank": 3, "host": "another-node"}]
    trace_capture._report(abouts, folder, 0, as_json=False)


# emulator: training


@screen("train")
def train(_: Path) -> None:
    from host_agent.training.report import print_table
    from host_agent.training.runner import Comparison, Outcome
    from host_agent.training.worker import Settings

    agents = [{"sent": 1e9, "received": 1e9, "retransmitted": 12345, "refused": 0, "transport": way, "goodput_bps": 9e9,
               "wire_bytes": 1e9, "busy_s": 1.0, "bytes": 1e9, "reduced_bytes": 1e9, "allreduce_s": 1.0,
               "seconds": 1.0} for way in ("shm", "udp")]  # fmt: skip
    codec = [{"bytes_sent": 1e6, "bytes_dense": 1e8, "compress_s": 1.5}]
    decisions = [{"step": n, "bucket": 1, "from": "none", "to": "topk:ratio=0.01", "goodput_bps": 1e9}
                 for n in range(12)]  # fmt: skip
    both = {
        name: Outcome(0.98, [2.3, 0.01], 123.4, 0.0123, "0123456789abcdef" * 4, np.zeros(3), agents, codec, decisions,
                      activations=[{"bytes": 1e12, "compressed_bytes": 2e11, "left_bytes": 1e9, "compress_s": 2e3,
                                    "restore_s": 1e3}])
        for name in ("gloo", "switchml")
    }  # fmt: skip
    settings = Settings(32, 3000, 32, 0.05, 1, codec="topk:ratio=0.01", activations="levels")
    print_table(Comparison(both, 0, 1.5), settings, "software")


@screen("peers")
def peers(_: Path) -> None:
    from emulator.peers.report import print_report

    parts = {"compute": 0.01, "exposed communication": 0.004, "waiting for peers": 0.0}
    used = {"all_reduce": {"calls": 40_000, "bytes": 4e12, "seconds": 0.1}}
    report = {"world_size": 65_536, "real_ranks": list(range(24)), "cluster": LONG, "clock": "virtual"}
    report |= {"iterations": 4000, "counted_iterations": 1900, "iteration_s": 0.014, "parts": parts}
    print_report(report | {"collectives": used, "assumptions": ["what the cluster's closed forms say; " * 4]})


# emulator: jobs, networks, switches


@screen("emulate")
def emulate(_: Path) -> None:
    from emulator.cli.emulate import row_cells, row_columns, show_names
    from emulator.jobs.sweep import Axis
    from switchml.tables import Stream

    run("emulate", "--model", "gpt2-124m", "--gpus", 2, "--batch", 16, "--micro-batch", 8, "--steps", 1e6)
    stream = Stream(row_columns([Axis("gpus", [65536]), Axis("allreduce", ["switchml"])]))
    row = {"gpus": 65536, "allreduce": "switchml", "iteration_s": 12.3456, "samples_per_s": 123456.7, "mfu": 0.4567}
    row |= {"memory_bytes": 79.9e9, "parts": {"exposed_communication": 1.2, "bubble": 3.4}}
    stream.add(*row_cells(row, ["gpus", "allreduce"]))
    stream.add(*row_cells(row | {"error": "the job does not fit"}, ["gpus", "allreduce"]))
    stream.close("gpus 65536 allreduce switchml: the job does not fit: " + "141.2 GB of 80 GB " * 5)
    show_names({"clusters": {"a100-40g-roce1600": "8 A100 40 GB a node, NVSwitch, 8 x 200 Gb/s RoCE, and more " * 2}})


@screen("simulate")
def simulate(_: Path) -> None:
    from emulator.cli.simulate import show_many, show_one
    from emulator.faults.campaign import Tally
    from emulator.netsim.config import JobConfig
    from emulator.netsim.experiment import JobResult, Result
    from emulator.netsim.link import LinkCounts
    from emulator.netsim.report import print_tables
    from switchml.protocol.best_effort import COUNTS

    tally = Tally(100_000, 10**9, 10**12, 10**9, 123_456, 1e7, "0123456789abcdef")
    show_many(tally, 12_345.6, "", range(100_000))
    show_many(replace(tally, interrupted=True), 12_345.6, " --failover", range(10**8, 10**8 + 10**6))
    show_one(SimpleNamespace(events=12_345_678, seconds=1.234, packets=10**9, sums=10**6, errors=123, problem="",
                             trace="0123456789abcdef"))  # fmt: skip
    jobs = [
        JobResult(JobConfig(128, 1 << 30, name, backend), 16384, 1.2, [1.23456], 10**9, 10**6, 12_345, 10**5)
        for name, backend in ((LONG, "switchml"), ("ring", "ring"))
    ]
    links = {f"host {n} up": LinkCounts(10**9, 10**12, 10**6, 10**5, 0, 0, 1e8, 1e7) for n in range(3)}
    met = dict.fromkeys(COUNTS, 10**9)
    print_tables(Result(None, jobs, links, dict.fromkeys(links, 1e11), 12.3, 1e4, 10**9, 123.4, met))  # type: ignore[arg-type]


def link_tally(backend: str = "switchml"):
    from emulator.bench.network.measure import LinkTally

    tally = LinkTally([1.234, 1.345, 2.456], 12, 1e-6, 1.0, 0, agents={"retransmitted": 1_234_567.0})
    tally.cpu_seconds, tally.sent_bytes = {"ranks": 1234.5}, {"up": 10**10, "down": 10**10, "trunks up": 10**10}
    return tally


@screen("mininet")
def mininet(_: Path) -> None:
    from emulator.bench.mininet import report
    from emulator.bench.mininet.experiments import MininetPlan, Row, cases
    from switchml.tables import Stream

    for experiment in ("two-racks", "loss"):
        plan = MininetPlan(experiment=experiment, hosts=8, size_bytes=1 << 28)
        has_trunks = experiment == "two-racks"
        stream = Stream(report.columns(plan, has_trunks), report.title(plan))
        for case in cases(plan)[:3]:
            stream.add(*report.cells(plan, Row(case, link_tally(), plan.size_bytes), has_trunks))
        stream.close(report.note(plan, has_trunks))


@screen("switch")
def switch(_: Path) -> None:
    run("switch", "--version")


@screen("stf")
def stf(_: Path) -> None:
    from emulator.cli import stf

    failure = "line 12: port 3: expected 0123456789abcdef0123456789abcdef, got nothing within the time given to it"
    stf.show(SimpleNamespace(warnings=[failure], failures=[failure], has_passed=False, sent={}), verbose=False)


# emulator: traces


def trace_folder(folder: Path, name: str = "run", **options: float) -> Path:
    """The trace of a tiny job."""
    from emulator.traces.readers import native
    from tests.support.traced_jobs import Job, traced

    path = folder / name
    path.mkdir()
    for trace in traced(Job(ranks=2, layers=2, buckets=(1, 1), **options), iterations=2).traces:  # type: ignore[arg-type]
        native.write(trace, path / f"rank-{trace.rank}.npz")
    return path


@screen("trace info")
def info(folder: Path) -> None:
    run("trace", "info", trace_folder(folder).relative_to(folder))


@screen("trace convert")
def convert(folder: Path) -> None:
    from emulator.cli.trace import convert

    convert.show({f"{LONG}/{LONG}/rank-{rank}.json.gz": 123_456_789_012 for rank in range(2)})


@screen("trace emulate")
def emulate_workload(_: Path) -> None:
    from emulator.cli.trace import emulate

    parts = SimpleNamespace(mean=lambda: {"compute": 1.0, "exposed communication": 0.2},
                            hidden_communication_s=lambda: 0.5)  # fmt: skip
    answer = {"iteration_s": 1.2, "ranks": 65_536, "ops": 123_456_789, "cluster": LONG}
    emulate.show(answer | {"assumptions": ["compute without a duration is costed by FLOPs and bytes " * 3]}, parts)


@screen("trace replay")
def replay(_: Path) -> None:
    from emulator.cli.trace import replay
    from emulator.replay.parts import PARTS

    ranks = [{"parts_s": {"compute": 123.4}}] * 20
    one = {"iteration_s": 1234.5, "parts_s": dict.fromkeys(PARTS, 123.4), "ranks": ranks}
    report = {name: one for name in ("traced", "replayed", "changed")}
    report |= {"iterations": 10, "ranks": list(range(20)), "ops": 123_456_789, "error": 0.0123, "speedup": 1.2345}
    changes = ["all-reduce in the network by node", "links 100000 Mbit/s", "buckets of 25 MiB, 25 MiB", "codec fp16"]
    replay.show(report | {"changes": changes, "assumptions": ["links carry what the trace says they carried " * 3]})


@screen("trace diagnose")
def diagnose(folder: Path) -> None:
    run("trace", "diagnose", trace_folder(folder, gap_s=2e-3))


@screen("trace diff")
def diff(_: Path) -> None:
    from emulator.cli.trace import diff
    from emulator.diagnosis.diff import Difference, Row

    rows = [Row(KERNEL, 0.0123, 0.1234, 12, 24, 0.0012, True), Row("aten::mm", 0.1, 0.0, 3, 0, 0.5, False)] * 10
    rows += [Row(KERNEL, 0.0, 0.1, 0, 3)] * 20
    whole = Row("iteration", 1.2, 1.3, p=0.01, is_significant=True)
    differences = Difference(None, None, whole, rows, rows, 0.01, rows, rows)  # type: ignore[arg-type]
    diff.show(differences, Path(LONG) / "a", Path(LONG) / "b")


@screen("trace optimize")
def optimize(_: Path) -> None:
    from emulator.cli.trace import optimize

    change = {"tp": 8, "pp": 16, "schedule": "interleaved", "virtual_stages": 4, "micro_batch": 2, "recompute": ""}
    memory = SimpleNamespace(total=79.9e9)
    emulation = SimpleNamespace(iteration_s=12.3, memory=memory)
    one = SimpleNamespace(change=change, sample_s=0.1, emulation=emulation)
    asked = SimpleNamespace(sample_s=0.2, emulation=emulation)
    figures = {"gain": 0.5, "evaluated": 12_345, "refused": 1_234, "wall_s": 12.3, "how": "Optuna's TPE, after others"}
    result = SimpleNamespace(alone={"split": one, "schedule": one}, requested=asked, best=one, **figures)
    optimize.show(result)


# emulator: benchmarks


@screen("bench allreduce")
def bench_allreduce(_: Path) -> None:
    from emulator.bench import report
    from emulator.bench.allreduce import Measurement, Report
    from emulator.bench.limits import Limit
    from emulator.bench.sizes import single
    from emulator.bench.tally import Tally
    from switchml.tables import Stream

    backends = ("switchml", "dense", "gloo")
    usage = {"user_s": 1234.5, "system_s": 123.4, "voluntary": 1e6, "involuntary": 1e6}
    tallies = {name: Tally([0.123456, 0.2], 4, 1e-9, 1.0, 0, usage, {"sent": 1e9}) for name in backends}
    measured = Measurement(case=single(1 << 30, 2, 0), tallies=tallies, aggregator=usage)
    stream = Stream(report.columns(backends), report.title(256, "udp", "int32", 256, 256))
    stream.add(*report.cells(measured, 256, backends))
    whole = Report(256, "udp", "int32", backends, [measured])
    stream.close(*report.notes(whole))
    report.print_footer(whole, Limit(256, 256, "udp", "int32", 1.234, 2.345, 1.234, 2.345, 1.234, 2.345, 1.234))


@screen("bench aggregators")
def bench_aggregators(_: Path) -> None:
    from emulator.bench.aggregators import print_table

    row = {"transport": "frames", "payload_bytes": 1024, "median_seconds": 1.2345, "algbw_gb_per_s": 12.3456}
    row |= {"busbw_gb_per_s": 23.4567, "packets": {"sent": 10, "retransmitted": 9}, "times_as_long": 123.45}
    row["times_as_long_range"] = [100.12, 1234.56]
    results = [{"aggregator": name, **row} for name in ("p4", "bmv2-lanes", "software")]
    print_table({"workers": 32, "size_bytes": 1 << 30, "results": results})


@screen("bench network")
def bench_network(_: Path) -> None:
    from emulator.bench.network import report
    from emulator.bench.network.measure import Experiment, Result
    from emulator.bench.sparsity import Sparsity
    from emulator.testbed.star import LinkOptions
    from switchml.tables import Stream

    link = LinkOptions(1e11, 0.01, 0.01)
    backends = ("switchml", "dense", "gloo")
    experiment = Experiment(16, link, 1 << 16, sparsity=Sparsity(0.01), backends=backends, ranks_per_host=8)
    stream = Stream(report.columns(experiment, True), report.title(experiment, "cubic"))
    for row in report.rows(Result(experiment, "cubic", {name: link_tally() for name in backends})):
        stream.add(*row)
    stream.close(*report.notes(experiment))


@screen("bench codecs")
def bench_codecs(_: Path) -> None:
    from emulator.bench.codecs.measure import Measured, Report
    from emulator.bench.codecs.report import print_table
    from emulator.bench.codecs.rivals import Missing
    from emulator.bench.codecs.tensors import Tensor

    def measured(name: str, ours: bool) -> Measured:
        return Measured(name, ours, "sparse-sum", 1 << 28, "", 12_345, 10**9, 10**9, 1.2e-3, 3.4e-5, [0.123], [0.234])

    tensor = Tensor(np.zeros(8, np.float32), (2, 4), "gradient of the digits model")
    rows = [measured("adaq:bits=4,ratio=0.01,momentum=0.9,blocks=8192,stages=3", True), measured("SZ3", False)]
    print_table(Report(tensor, 256, 1e-3, 0.01, rows, [Missing("ZFP", "needs zfpy: pip install 'switchml[bench]'")]))


@screen("bench switch")
def bench_switch(_: Path) -> None:
    from emulator.cli.bench import switch

    result = dict.fromkeys(switch.ENGINES, 1_234_567.8) | {"program": LONG[:30], "wire_pps": None}
    switch._print([LONG[:30]], [SimpleNamespace(to_json=lambda: result)], switch.ENGINES, ",.0f", as_json=False)


@screen("bench optimizer", "bench replay", "bench trace")
def bench_speed(_: Path) -> None:
    from emulator.bench import optimizer, replay, trace
    from switchml.terminal import say

    many = dict.fromkeys(("ops_per_s", "calendar_ops_per_s", "competing_ops_per_s", "reference_ops_per_s"), 1e9)
    for lines in (
        replay.Measured(ops=10**9, ranks=65_536, reference_ops=10**6, build_s=123.4, **many).lines(),
        _filled(optimizer.Measured).lines(),
        _filled(trace.Measured).lines(),
    ):
        say("\n".join(lines))


def _filled(kind):
    """A record of figures, all of them large."""
    return kind(**dict.fromkeys(kind.__dataclass_fields__, 123_456_789.0))


# emulator: validation


@screen(*(f"validate {name}" for name in ("iterations", "nccl", "megatron", "throughput", "memory", "peers")))
def validation(_: Path) -> None:
    from emulator.validation.report import show
    from emulator.validation.rows import Row

    rows = [Row(f"{KERNEL} {n}", 12_345.678, 12_456.789, unit) for n, unit in enumerate(("tokens/s", "s", "GiB") * 6)]
    show("throughput", rows, [(LONG, rows[:3]), ("others", rows[3:])], {}, None, as_json=False)


@screen("validate all")
def validate_all(_: Path) -> None:
    from emulator.validation.campaigns import Campaign, table
    from emulator.validation.rows import Row
    from switchml.tables import show

    name = "all-reduces of 16 MB and more, closed form of a cluster with a name of some length"
    show(table([Campaign(name, [Row(KERNEL, 1.0, 2.0, "s")] * 3)]))


@screen("validate intervals")
def validate_intervals(_: Path) -> None:
    from emulator.jobs.interval import Group
    from emulator.validation.coverage import TITLES, Held, tables
    from switchml.tables import show

    groups = {name: Group(title, 1234, 1.234, 4096, 0.8, 0.8, 0.8) for name, title in TITLES.items()}
    for one in tables(groups, {"a file's name of some length, a100_multi_node": Held(1234, 0.8, 0.8, 0.8)}):
        show(one)


@screen("validate clocks", "validate replay")
def validate_replay(_: Path) -> None:
    from emulator.validation.clocks import Recovered
    from emulator.validation.replay.measure import ReplayValidation
    from emulator.validation.replay.report import print_table
    from emulator.validation.rows import Row

    rows = [Row("4 workers, half the bandwidth, buckets of 25 MiB, the aggregator in Gloo's place", 1.2, 1.3, "s")]
    print_table(ReplayValidation(rows, rows, [Recovered(f"{LONG}/4-workers", "collectives", 0.05, 0.012)], rows))


@screen("validate real")
def validate_real(_: Path) -> None:
    from emulator.validation.real.measure import Calibration, Layout, RealValidation, Row
    from emulator.validation.real.report import print_table
    from emulator.validation.rows import Row as ScatterRow

    known = {"gloo": 0.0123, "switchml": 0.0123}
    layouts = [Layout("switchml", 256, 8, "node"), Layout("gloo", 256)]
    rows = [Row(layout, 1e11, 12.3456, 12.4567, False, 1.23) for layout in layouts]
    validation = RealValidation(
        [Row(layouts[1], 4e7, 0.1, 0.1, True), *rows], Calibration(0.1, known, known, 256), 10**6
    )
    others = [ScatterRow("transformer, 128 images, levels: extra time", 0.0123, 0.0456, "s")]
    print_table(validation, [*others, ScatterRow("states offloaded: device", 1234.5, 1234.5, "MB")])


@screen("report")
def report(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / f"{name}.json").write_text('{"iteration_s": 1.5}')
    run("report", "a.json", "b.json")


@screen("ui")
def ui(_: Path) -> None:
    from unittest import mock

    with mock.patch("emulator.ui.server.Server.serve_forever"):
        run("ui")


@screen("reproduce")
def reproduce(_: Path) -> None:
    from emulator.reproduce import claims, report
    from emulator.reproduce.running import Outcome
    from switchml.tables import show

    run("reproduce")
    show(report.table([Outcome(one, {}, (12_345.678,) * len(one.figures), 1.0) for one in claims.load_all([])]))
