"""Graphs of iterations: they make sense, folding changes nothing, and known schedules take what formulas say."""

import dataclasses

import numpy as np
import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.innetwork import Streaming
from emulator.jobs import iteration
from emulator.jobs.costed import closed_form_s
from emulator.jobs.costing import plan
from emulator.jobs.emulate import replayed_s
from emulator.jobs.replay.engine import replay
from emulator.jobs.replay.parts import parts
from emulator.jobs.workload import models
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.graph import Kind
from emulator.jobs.workload.job import Job
from switchml.errors import ConfigError

DGX = clusters.load("a100-dgx")
GPT = models.Transformer("gpt", "a small GPT", "made up", 12, 1024, 16, 51200, 512)

JOBS = {
    "alone": Job(gpus=1, batch=2),
    "data": Job(gpus=4, batch=8),
    "zero 1": Job(gpus=4, batch=8, zero=1),
    "zero 3": Job(gpus=4, batch=8, zero=3),
    "zero 3, recompute": Job(gpus=4, batch=8, zero=3, recompute="full"),
    "tensor": Job(gpus=4, tp=4, batch=2, recompute="selective", sequence_parallel=True),
    "1f1b": Job(gpus=8, tp=2, pp=2, batch=8, recompute="full"),
    "gpipe": Job(gpus=8, tp=2, pp=2, batch=8, schedule="gpipe"),
    "interleaved": Job(gpus=8, tp=2, pp=2, batch=8, schedule="interleaved", virtual_stages=3),
    "axonn": Job(gpus=8, tp=2, pp=2, batch=8, schedule="axonn"),
    "zb-h1": Job(gpus=8, tp=2, pp=2, batch=8, schedule="zb-h1", recompute="selective"),
    "no overlap": Job(gpus=8, tp=2, pp=2, batch=8, overlap=False),
}


@pytest.mark.parametrize("name", JOBS)
def test_graphs_make_sense_and_folding_changes_nothing(name):
    made = plan(GPT, JOBS[name], DGX)
    times = []
    for fold in iteration.FOLDS:
        graph, costs = iteration.build(made, fold)
        check(graph)
        times.append(replay(graph, costs).makespan_s)
        assert graph.ranks.weight.sum() == made.job.gpus
    assert times == pytest.approx([times[0]] * 3, rel=1e-9)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("pp", "schedule"), [(1, "1f1b"), (2, "1f1b"), (2, "zb-h1"), (1, "zb-h1")])
def test_the_graph_has_all_flops(recompute, pp, schedule):
    job = Job(gpus=pp, pp=pp, batch=4, recompute=recompute, schedule=schedule)
    graph, _ = iteration.build(plan(GPT, job, DGX))
    done = graph.op_types.flops[graph.ops.op_type].sum()
    layers = 4 * GPT.layers * (24 * 512 * 1024**2 + 4 * 512**2 * 1024)
    assert done == pytest.approx(4 * GPT.flops_per_sample(512) + (layers if recompute == "full" else 0))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_equal_stages_fill_and_drain_as_the_formula_says(schedule, count):
    """(m + p - 1) (forward + backward), hand-overs and ends aside; gradients of weights fill part of it where they are
    apart."""
    made = plan(GPT, Job(gpus=4, pp=4, batch=count, schedule=schedule), DGX)
    middle = made.stages[1]
    equal = dataclasses.replace(
        made, stages=(middle,) * 4, activation_p2p=dataclasses.replace(made.activation_p2p, fixed_s=0.0, bytes=0.0),
        optimizer_s=(0.0,) * 4, iteration_s=0.0, tied=dataclasses.replace(made.tied, fixed_s=0.0, bytes=0.0),
    )  # fmt: skip
    # One micro-batch alone leaves a stage nothing to fill the bubble with but its own gradients of weights.
    filled_s = (2.0 if count > 1 else 1.0) * middle.weights_s if schedule == "zb-h1" else 0.0
    assert replayed_s(equal) == pytest.approx((count + 3) * middle.seconds - 3 * filled_s, rel=1e-9)


def test_gradients_of_weights_are_a_part_of_backward():
    """About half of it: each product has two in backward, but attention's have both for its inputs."""
    for step in plan(GPT, Job(gpus=1), DGX).stages[0].steps:
        share = step.weights_flops / step.backward_flops if step.backward_flops else 1.0
        assert share == pytest.approx({"attention": 1 / (2 + 512 / 1024), "embedding": 1.0}.get(step.name, 0.5))
        assert 0 < step.weights_s <= step.backward_s


def test_schedules_that_need_a_transformer_or_whole_weights_say_so():
    with pytest.raises(ConfigError, match="zero 3 is not modelled with schedule zb-h1"):
        Job(gpus=4, pp=2, zero=3, schedule="zb-h1")


def test_interleaving_shortens_the_bubble():
    def iteration_s(**changes):
        return replayed_s(plan(GPT, Job(gpus=4, pp=4, batch=4, **changes), DGX))

    assert iteration_s(schedule="interleaved", virtual_stages=3) < iteration_s()


def test_layers_that_do_not_divide_evenly():
    made = plan(GPT, Job(gpus=5, pp=5, batch=8), DGX)
    assert [sum(step.name == "mlp" for step in stage.steps) for stage in made.stages] == [3, 3, 2, 2, 2]
    assert sum(stage.parameters for stage in made.stages) == pytest.approx(GPT.parameters + 51200 * 1024, rel=1e-4)


@pytest.mark.parametrize(("pp", "virtual"), [(2, 1), (7, 1), (14, 1), (2, 7), (7, 2)])
@pytest.mark.parametrize("counted", [(True, True), (True, False), (False, True)])
def test_embedding_and_loss_take_the_places_of_layers(pp, virtual, counted):
    """Dealt out one by one: embedding, layers and loss to pieces of as equal sizes as can be, the first ones larger."""
    places = ["embedding"] * counted[0] + ["layer"] * GPT.layers + ["loss"] * counted[1]
    pieces = pp * virtual
    sizes = [len(range(first, len(places), pieces)) for first in range(pieces)]
    dealt = iter(places)
    expected = [[next(dealt) for _ in range(size)].count("layer") for size in sizes]
    job = Job(gpus=pp, pp=pp, batch=14, virtual_stages=virtual, schedule="interleaved" if virtual > 1 else "1f1b")
    job = job.replace(counts_embedding=counted[0], counts_loss=counted[1])
    if min(sizes) == 0:
        with pytest.raises(ConfigError, match="12 layers and the (embedding|loss) can't be split into 14"):
            job.fit(GPT)
        return
    found = {
        piece: layers
        for stage in range(pp)
        for piece, layers in zip(range(stage, pieces, pp), job.pieces(GPT, stage), strict=True)
    }
    assert [len(found[piece]) for piece in range(pieces)] == expected
    assert [layer for piece in range(pieces) for layer in found[piece]] == list(range(GPT.layers))
    made = plan(GPT, job, DGX)
    names = [[step.name for step in stage.steps] for stage in made.stages]
    assert names[0][0] == "embedding" and names[-1][-1] == "loss"
    graph, costs = iteration.build(made, "none")
    check(graph)
    assert graph.op_types.flops[graph.ops.op_type].sum() == pytest.approx(14 * GPT.flops_per_sample(512))
    assert replay(graph, costs).makespan_s >= 14 * max(stage.seconds for stage in made.stages)


def test_a_stage_of_the_embedding_alone_holds_no_layers():
    from emulator.jobs.workload.memory import memory

    job = Job(gpus=14, pp=14, batch=14, counts_embedding=True, counts_loss=True)
    made = plan(GPT, job, DGX)
    assert [len(stage.steps) for stage in made.stages] == [1, *[2] * 12, 1]
    own, plain = memory(GPT, job), memory(GPT, job.replace(gpus=12, pp=12, counts_embedding=False, counts_loss=False))
    assert own.weights < plain.weights and own.activations < plain.activations


@pytest.mark.parametrize("name", ["alone", "tensor", "1f1b", "zb-h1", "no overlap"])
def test_replay_is_near_the_closed_form(name):
    made = plan(GPT, JOBS[name].replace(overlap=False), DGX)
    assert replayed_s(made) == pytest.approx(closed_form_s(made), rel=0.03)


def test_message_driven_adapts_but_is_no_faster_without_need():
    """On equal stages AxoNN's order emerges as about that of 1F1B."""
    steady, driven = (
        replayed_s(plan(GPT, Job(gpus=4, pp=4, batch=16, schedule=name, overlap=False), DGX))
        for name in ("1f1b", "axonn")
    )
    assert driven == pytest.approx(steady, rel=0.1)


def test_message_driven_passes_are_undivided_and_say_what_they_exchange():
    made = plan(GPT, Job(gpus=16, tp=4, pp=4, batch=16, schedule="axonn", overlap=False), DGX)
    whole, folded = (replay(*iteration.build(made, fold)) for fold in ("none", "all"))
    assert whole.makespan_s == pytest.approx(folded.makespan_s, rel=1e-12)
    names = np.array(folded.graph.op_types.name)[folded.graph.ops.op_type]
    for way in ("forward", "backward"):
        exchanged = np.flatnonzero(names == f"tensor-parallel all-reduces of a {way} pass")
        assert len(exchanged) == 4 * 16
        np.testing.assert_array_equal(folded.start_s[exchanged], folded.end_s[exchanged - 1])
    communication = parts(folded).mean()["exposed communication"]
    assert communication > sum(2 * step.reduce.seconds for stage in made.stages for step in stage.steps) / 4 * 16


def test_buckets_overlap_and_sum_to_all_gradients():
    job = Job(gpus=16, batch=16, micro_batch=1, bucket_bytes=20e6)
    made = plan(GPT, job, DGX)
    graph, costs = iteration.build(made)
    buckets = [i for i, name in enumerate(graph.op_types.name) if "bucket" in name]
    moved = sum(
        graph.op_types.bytes[graph.ops.op_type[op]] for op in range(len(graph.ops)) if graph.ops.op_type[op] in buckets
    )
    assert moved == pytest.approx(2 * GPT.parameters, rel=1e-4)
    assert replay(graph, costs).makespan_s < replayed_s(plan(GPT, job.replace(overlap=False), DGX))


def test_a_codec_sends_less_and_takes_time():
    from emulator.cluster import codecs

    job = Job(gpus=16, batch=16)
    graph, _ = iteration.build(plan(GPT, job, DGX, codec=codecs.load("topk:ratio=0.01")))
    kinds = graph.op_kind()
    assert (kinds == Kind.CODEC).sum() > 0
    plain, _ = iteration.build(plan(GPT, job, DGX))
    sent = [g.op_types.bytes[g.transfers.op_type].sum() for g in (graph, plain)]
    assert sent[0] == pytest.approx(sent[1] * 0.64 / 16, rel=0.01)


def test_fused_operators_start_once():
    """Of ResNet-50's 229 kernels forward, 122 go into the one before; VGG-16's are products already."""
    job = Job(gpus=16, micro_batch=32, precision="fp32", gradient_bytes=4)
    for name, kernels, fewer in (("resnet50", 229, 122), ("vgg16", 16, 0)):
        network = models.load(name)
        plain, fused = (plan(network, each, DGX) for each in (job, job.replace(fuse=True)))
        starts = [sum(step.forward_kernels for step in one.stages[0].steps) for one in (plain, fused)]
        assert starts == [kernels, kernels - fewer]
        saved_s = sum(step.compute_s for step in plain.stages[0].steps) - sum(
            step.compute_s for step in fused.stages[0].steps
        )
        assert saved_s == pytest.approx(3 * fewer * DGX.software.kernel_s)
    with pytest.raises(ConfigError, match="fuse needs a layer table"):
        plan(GPT, Job(gpus=16, batch=16, fuse=True), DGX)


def test_sparse_models_gain_from_leaving_zero_blocks_out():
    """DeepLight on the testbed of OmniReduce, where its authors saw 8 times."""
    testbed, net = clusters.load("p100-10g"), models.load("deeplight")
    job = Job(gpus=8, micro_batch=2048, allreduce="switchml", gradient_bytes=4, precision="fp32")
    dense, sparse = (replayed_s(plan(net, job, testbed, Streaming(sparse=is_sparse))) for is_sparse in (False, True))
    assert dense / sparse > 5


@pytest.mark.parametrize(("model", "settings", "message"), [
    (GPT, dict(gpus=8, tp=3), "can't be divided evenly by tp 3 x pp 1"),
    (GPT, dict(gpus=16, pp=16), "12 layers can't be split into 16 stages"),
    (GPT, dict(gpus=5, pp=5, batch=5, schedule="interleaved", virtual_stages=3), "into 15 pieces"),
    (GPT, dict(gpus=32, tp=32), "16 heads .16 of keys. can't be split over tp 32"),
    (GPT, dict(gpus=2, batch=3), "batch 3 is not divisible by 2"),
    (GPT, dict(gpus=2, schedule="interleaved"), "go together"),
    (GPT, dict(gpus=2, schedule="interleaved", virtual_stages=2), "at least 2 pipeline stages"),
    (GPT, dict(gpus=2, schedule="1b1f"), "did you mean 1f1b"),
    (models.load("vgg16"), dict(gpus=2, tp=2), "data-parallel only, but tp is 2"),
])  # fmt: skip
def test_what_can_not_be_is_refused(model, settings, message):
    with pytest.raises(ConfigError, match=message):
        plan(model, Job(**settings), DGX)


def test_shards_of_gradients_are_dense():
    with pytest.raises(ConfigError, match="use zero 0 with sparse"):
        plan(GPT, Job(gpus=2, zero=1, allreduce="switchml"), DGX, Streaming(sparse=True))


def test_steps_of_the_optimizer_by_kernels_and_precision():
    """foreach moves 26 values for 7 of fused; without master weights each has half the bytes."""
    machine = dataclasses.replace(DGX, constants=DGX.constants | {"kernel_s": 0.0})
    seconds = {
        (kernels, masters): plan(
            GPT, Job(gpus=1, implementation="torch", optimizer_kernels=kernels, master_weights=masters), machine
        ).optimizer_s[0]
        for kernels in ("fused", "foreach")
        for masters in (True, False)
    }
    assert seconds["foreach", True] / seconds["fused", True] == pytest.approx(26 / 7)
    assert seconds["fused", True] / seconds["fused", False] == pytest.approx(2)
