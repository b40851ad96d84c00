"""Each check finds the trouble that was planted, says what mending it gains as if it had not been planted, and finds
nothing where there is none."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from emulator.jobs.replay.engine import replay
from emulator.jobs.workload.graph import Kind
from emulator.traces.diagnosis.agreement import check, replay_warning
from emulator.traces.diagnosis.checks import diagnose
from emulator.traces.diagnosis.context import DiagnosisContext
from emulator.traces.events import WireWhat
from emulator.traces.join import MEAN, join
from emulator.traces.readers.read import read
from emulator.traces.whatif.codec_costs import CodecCost
from emulator.traces.whatif.edits import before
from switchml.protocol.sizes import SWITCHML_SHARE, TCP_SHARE
from switchml.units import time_text
from tests.support.staged_traces import Staged, capture
from tests.support.traced_jobs import Job, build, traced, wire_of

HEALTHY = Job(bytes_per_s=5e10, latency_s=20e-6)


SURE = {
    "straggler", "occasional straggler", "uneven work", "serialized all-reduces", "small buckets", "large buckets",
    "late first bucket", "small messages", "starved accelerator", "allocations", "synchronizations", "host gaps",
    "pauses", "loading", "compression", "packets sent again", "slow network",
}  # fmt: skip


def makespan_s(job, iteration=0):
    graph, costs, _ = build(job, iteration)
    return replay(graph, costs).makespan_s


def one(joined, kind, **options):
    """The one finding of this kind."""
    (found,) = (finding for finding in diagnose(joined, **options).findings if finding.kind == kind)
    return found


def only(joined, kind):
    """The one finding there is, apart from that another network would help where the network is slow."""
    found = [finding for finding in diagnose(joined).findings if finding.kind in (kind, *SURE)]
    assert [finding.kind for finding in found] == [kind], [finding.title for finding in found]
    return found[0]


@pytest.mark.parametrize("job", [
    HEALTHY,
    replace(HEALTHY, ranks=1),
    replace(HEALTHY, ranks=2, hosts=("a", "a")),
    replace(HEALTHY, ranks=3, pipeline_bytes=1e6, links=lambda source, to: 1e11),
    replace(HEALTHY, ranks=6, pipeline_bytes=4e6, links=lambda source, to: 2e9),
    replace(HEALTHY, launch_s=1e-6),
    replace(HEALTHY, metrics=5, metric_s=1e-6),
    replace(HEALTHY, codec_s=1e-5, ratio=4.0),
])  # fmt: skip
def test_nothing_to_change_is_an_answer(job):
    assert diagnose(traced(job, iterations=6)).findings == []


SLOW_NETWORK = replace(HEALTHY, bytes_per_s=1e9)
BOUND = replace(HEALTHY, ranks=8, bytes_per_s=2e8, latency_s=1e-3, buckets=(1, 3, 4))
PIPELINE = replace(HEALTHY, ranks=6, pipeline_bytes=4e6)


@dataclass(frozen=True)
class Trouble:
    """A job, what it would be without its trouble, and what its finding says in its title, and beside it."""

    kind: str
    job: Job
    mended: Job
    title: str = ""
    says: str = ""
    rel: float = 1e-6
    is_alone: bool = True


def slow(job=HEALTHY, by=1.3, **changes):
    """The job with ranks that `changes` names slow, and without."""
    return replace(job, slowness=lambda rank, *_: by if rank in changes["ranks"] else 1.0), job


TROUBLES = {
    "a slow rank": Trouble("straggler", *slow(ranks=(2,)), "rank 2 on node 2: everything takes 1.30 times"),
    "a slow machine": Trouble(
        "straggler", *slow(replace(HEALTHY, hosts=("a", "a", "b", "b", "a"), ranks=5), ranks=(2, 3)),
        "b (ranks 2, 3): everything takes 1.30 times",
    ),
    # Mending one of them gains nothing.
    "equally slow ranks": Trouble(
        "straggler", *slow(replace(HEALTHY, ranks=8), ranks=(2, 5)),
        "rank 2 on node 2, rank 5 on node 5: everything takes 1.30 times",
    ),
    "a slow op": Trouble(
        "straggler", replace(HEALTHY, slowness=lambda *at: 4.0 if at[:2] == (1, "backward 3") else 1.0), HEALTHY,
        "rank 1 on node 1: backward 3 takes 4 times as long as elsewhere",
    ),
    "sums after backward": Trouble(
        "serialized all-reduces", replace(SLOW_NETWORK, serialized=True), SLOW_NETWORK,
        says="DistributedDataParallel", is_alone=False,
    ),
    "one large bucket": Trouble(
        "large buckets", replace(SLOW_NETWORK, buckets=(8,), latency_s=5e-6),
        replace(SLOW_NETWORK, buckets=(1,) * 8, latency_s=5e-6), says="bucket_cap_mb=1", rel=0.05,
    ),
    # On a ring each byte is sent 1.75 times, in the network once up and once down.
    "a slow ring": Trouble(
        "network bound", BOUND,
        replace(BOUND, bytes_per_s=2e8 * 1.75 * SWITCHML_SHARE / TCP_SHARE, latency_s=1e-3 / 7),
        says="switchml", rel=0.02, is_alone=False,
    ),
    "small messages": Trouble(
        "small messages", replace(HEALTHY, metrics=12), replace(HEALTHY, metrics=1), "12 small collectives", rel=1e-3
    ),
    "slow launches": Trouble(
        "starved accelerator", replace(HEALTHY, launch_s=0.006), replace(HEALTHY, launch_s=1e-12), says="16 ", rel=1e-3
    ),
    "allocations": Trouble(
        "allocations", replace(HEALTHY, launch_s=1e-6, allocate_s=0.02), replace(HEALTHY, launch_s=1e-6),
        says="4 calls: cudaMalloc 80.0 ms", is_alone=False,
    ),
    "synchronizations": Trouble(
        "synchronizations", replace(HEALTHY, launch_s=0.0015, waits=True), replace(HEALTHY, launch_s=0.0015),
        is_alone=False,
    ),
    "host gaps": Trouble("host gaps", replace(HEALTHY, gap_s=0.001), HEALTHY),
    # 20 ms to load, 49 ms to train: one keeps up, and one to spare.
    "loading": Trouble("loading", replace(HEALTHY, load_s=0.02), HEALTHY, says="num_workers=2,"),
    "loading of one rank": Trouble(
        "loading",
        replace(HEALTHY, load_s=0.002, slowness=lambda *at: 10.0 if at[:2] == (2, "DataLoader.__next__") else 1.0),
        HEALTHY, "rank 2 on node 2 takes 10 times as long as the median",
    ),
    "a codec that does not pay": Trouble(
        "compression", replace(HEALTHY, codec_s=0.02, ratio=4.0, about={"codec": "topk"}),
        replace(HEALTHY, latency_s=4 * HEALTHY.latency_s), "topk costs more than it saves", rel=1e-2, is_alone=False,
    ),
    "a machine's network": Trouble(
        "slow network", replace(PIPELINE, links=lambda *ends: 2e8 if 3 in ends else 2e9),
        replace(PIPELINE, links=lambda *ends: 2e9), "the network of node 3 is slow",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_is_found_and_mending_it_gains_what_it_costs(name):
    trouble = TROUBLES[name]
    found = (only if trouble.is_alone else one)(traced(trouble.job, iterations=4), trouble.kind)
    assert found.gain_s == pytest.approx(makespan_s(trouble.job) - makespan_s(trouble.mended), rel=trouble.rel)
    assert trouble.title in found.title
    assert any(trouble.says in line for line in (*found.evidence, *found.settings)), (found.evidence, found.settings)


def test_where_a_trouble_is_seen():
    found = only(traced(TROUBLES["a slow rank"].job, iterations=4), "straggler")
    assert found.severity == "high" and {sighting.rank for sighting in found.sightings} == {2}
    found = only(traced(TROUBLES["a slow op"].job, iterations=4), "straggler")
    assert {sighting.op for sighting in found.sightings} == {"backward 3"}
    assert only(traced(TROUBLES["slow launches"].job, iterations=4), "starved accelerator").is_bound


@pytest.mark.parametrize(("kind", "job"), [
    ("synchronizations", replace(HEALTHY, launch_s=0.0015)),
    ("compression", replace(SLOW_NETWORK, bytes_per_s=1e8, codec_s=0.001, ratio=20.0)),
])  # fmt: skip
def test_what_is_no_trouble_is_not_found(kind, job):
    assert kind not in [finding.kind for finding in diagnose(traced(job)).findings]


# Stragglers


def test_next_straggler_gains_what_is_left():
    job = replace(HEALTHY, ranks=8, slowness=lambda rank, *_: {2: 1.5, 5: 1.2}.get(rank, 1.0))
    found = diagnose(traced(job)).findings
    assert [finding.title.partition(":")[0] for finding in found] == ["rank 2 on node 2", "rank 5 on node 5"]
    assert sum(finding.gain_s for finding in found) == pytest.approx(
        makespan_s(job) - makespan_s(replace(job, slowness=HEALTHY.slowness))
    )
    assert "once that of rank 2 on node 2 is" in found[1].replayed


def test_rank_that_is_slow_now_and_then():
    def slowness(rank, name, iteration):
        return 1.5 if rank == 3 and iteration in (2, 5) else 1.0

    job = replace(HEALTHY, slowness=slowness)
    found = only(traced(job, iterations=8), "occasional straggler")
    lost_s = np.mean([makespan_s(job, number) for number in range(8)]) - makespan_s(HEALTHY)
    assert found.gain_s == pytest.approx(lost_s, rel=1e-6)
    assert "2 of 8 iterations" in found.title
    # Whichever iteration the join took.
    assert only(traced(job, iterations=8, shown=2), "occasional straggler").gain_s == pytest.approx(lost_s, rel=1e-6)


def test_always_slow_shows_behind_slow_now():
    """Rank 0 is the slowest of the joined iteration, but only there."""

    def slowness(rank, name, iteration):
        return 1.2 if rank == 2 else 1.6 if (rank, iteration) == (0, 3) else 1.0

    found = diagnose(traced(replace(HEALTHY, slowness=slowness), iterations=8, shown=3)).findings
    always = replace(HEALTHY, slowness=lambda rank, *_: 1.2 if rank == 2 else 1.0)
    (straggler,) = [each for each in found if each.kind == "straggler"]
    assert straggler.title.startswith("rank 2")
    assert straggler.gain_s == pytest.approx(makespan_s(always) - makespan_s(HEALTHY))
    assert [each.title.partition(" is slow")[0] for each in found if each.kind == "occasional straggler"] == [
        "rank 0 on node 0"
    ]


def test_more_work_is_not_slowness():
    """Rank 1 is as fast as the others, it only computes one layer more often."""
    joined = traced(HEALTHY)
    graph, extra = joined.graph, 8
    works = graph.op_types
    forward = [op for op in np.flatnonzero(graph.op_rank() == 1) if works.name[graph.ops.op_type[op]] == "forward 0"]
    more = before(joined, np.array(forward * extra), "forward 1", Kind.COMPUTE, [0.002] * extra)
    found = diagnose(more).findings[0]
    assert found.kind == "uneven work"
    assert found.gain_s == pytest.approx(extra * 0.002)
    assert "forward 1 9 times where others do it 1 times" in found.evidence[0]


# Overlap


def test_many_small_buckets():
    job = replace(HEALTHY, layers=64, forward_s=2e-4, backward_s=2e-4, buckets=(1,) * 56 + (8,), latency_s=1e-3)
    found = only(traced(job), "small buckets")
    assert found.gain_s > 0.4 * makespan_s(job)
    assert "57 buckets are too many" in found.title


# Network


def test_codec_is_advised_where_it_helps():
    fast, slow = {"fp16": CodecCost(0.5, 1e11)}, {"slow": CodecCost(0.5, 1e7)}
    found = one(traced(BOUND), "network bound", codecs=lambda: fast | slow)
    assert found.gain_s == pytest.approx(makespan_s(BOUND) - makespan_s(replace(BOUND, bytes_per_s=4e8)), rel=0.02)
    assert "codec fp16" in found.settings[0] and not any("slow" in setting for setting in found.settings)


def test_communication_is_named_with_its_size_and_transport(tmp_path):
    """Where accelerators wait for sums on their hosts, launching kernels faster is not what helps."""
    job = Staged(captured=True)
    capture(tmp_path, job)
    first, *others = diagnose(join(read(tmp_path))).findings
    exposed_s = capture(tmp_path, job) - capture(tmp_path, replace(job, all_reduce=1.0))
    twice_s = capture(tmp_path, job) - capture(tmp_path, replace(job, all_reduce=job.all_reduce / 2))
    assert first.kind == "network bound" and first.replayed == "a network twice as fast"
    assert first.gain_s == pytest.approx(twice_s, rel=0.03)
    assert float(first.title.split()[0]) == pytest.approx(exposed_s * 1e3, rel=0.1)
    assert any("4 collectives over gloo, copied from accelerators" in line for line in first.evidence)
    assert not any("CUDA graphs" in setting for setting in first.settings)
    assert all(other.severity == "low" for other in others)


@pytest.mark.parametrize("bytes_per_s", [2e8, 1e9])
def test_what_a_better_network_would_give(bytes_per_s):
    job = replace(HEALTHY, ranks=8, bytes_per_s=bytes_per_s, latency_s=1e-6, buckets=(1, 3, 4))
    found = one(traced(job), "network bound")
    half_s = makespan_s(replace(job, bytes_per_s=2 * bytes_per_s, latency_s=5e-7))
    lines = {line.partition(": ")[0]: line.partition(": ")[2] for line in found.evidence}
    assert lines["replayed with a network twice as fast"] == time_text(half_s)
    half_bytes = lines["replayed with half the bytes, as bf16 lanes carry of float32"]
    assert float(half_bytes.split()[0]) == pytest.approx(half_s * 1e3, rel=0.01)
    assert any("behind other work" in line for line in lines) and any("buckets of" in line for line in lines)


# Agreement


def test_a_report_that_does_not_add_up_is_an_error():
    context = DiagnosisContext.of(traced(replace(HEALTHY, ranks=8, bytes_per_s=2e8)))
    check(context, [])
    context.causes.parts.by_rank[3, 0] *= 1.01
    with pytest.raises(AssertionError, match="do not add up"):
        check(context, [])


@pytest.mark.parametrize(
    "change", [{"gain_s": 1e9}, {"gain_s": -1.0}, {"share": 0.5}, {"kind": "network bound", "gain_s": 0.999}]
)
def test_a_finding_that_the_table_contradicts_is_an_error(change):
    job = replace(HEALTHY, ranks=8, bytes_per_s=2e8, latency_s=1e-3, launch_s=1e-6)
    context = DiagnosisContext.of(traced(job))
    found = diagnose(context.joined).findings
    check(context, found)
    if "gain_s" in change and "kind" in change:
        change = change | {"gain_s": change["gain_s"] * context.iteration_s, "share": change["gain_s"]}
    with pytest.raises(AssertionError):
        check(context, [replace(found[0], **change)])


def test_a_replay_far_from_the_trace_is_said_first():
    joined = traced(HEALTHY)
    assert not replay_warning(DiagnosisContext.of(joined))
    off = replace(joined, iteration_s=joined.iteration_s / 2)
    assert diagnose(off).assumptions[0].startswith("the replay is +100% off the trace")


def test_garbage_collection():
    """Every third iteration, rank 1 stops for 30 ms before one operation."""

    def slowness(rank, name, iteration):
        return 3001.0 if (rank, name, iteration % 3) == (1, "gap before forward 4", 0) else 1.0

    job = replace(HEALTHY, gap_s=1e-5, slowness=slowness)
    lost_s = np.mean([makespan_s(job, number) for number in range(9)])
    lost_s -= makespan_s(replace(job, slowness=HEALTHY.slowness))
    for shown in (0, 1):
        found = only(traced(job, iterations=9, shown=shown), "pauses")
        assert found.gain_s == pytest.approx(lost_s, rel=1e-3)
        assert "about every 3 iterations" in found.title
        assert any("rank 1" in line for line in found.evidence)


# Wire


def test_loss():
    job = replace(HEALTHY, bytes_per_s=1e8, buckets=(8,))
    joined = traced(job)
    lossy_wire = {rank: wire_of(joined, rank, loss=0.01 if rank == 1 else 0.0) for rank in range(4)}
    lossy = traced(job, wire=lossy_wire)
    found = one(lossy, "packets sent again")
    assert found.gain_s == pytest.approx(10 * 0.004)
    assert any("rank 1" in line and "1.00%" in line for line in found.evidence)
    # In a mean of iterations only a share of what one of them lost.
    whole = replace(traced(job, iterations=4, wire=lossy_wire), iteration=MEAN)
    assert one(whole, "packets sent again").gain_s == pytest.approx(10 * 0.004 / 4)
    clean = traced(job, wire={rank: wire_of(joined, rank) for rank in range(4)})
    assert "packets sent again" not in [finding.kind for finding in diagnose(clean).findings]


def test_resends_while_a_rank_is_late_are_no_loss():
    """Rank 1 sends again and again, but rank 0 sends its own packets only afterwards."""
    job = replace(HEALTHY, bytes_per_s=1e8, buckets=(8,))
    joined = traced(job)
    wire = {rank: wire_of(joined, rank, loss=0.01 if rank == 1 else 0.0) for rank in range(4)}
    sent = wire[0].what == WireWhat.SENT
    wire[0] = replace(wire[0], at_s=np.where(sent, wire[0].at_s.max(), wire[0].at_s))
    found = diagnose(traced(job, wire=wire)).findings
    assert "packets sent again" not in [finding.kind for finding in found]
