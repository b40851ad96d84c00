"""Experts on ranks of their own: groups folded over tensor- and data-parallel ranks, who adds up their gradients, what
brings tokens to them."""

import dataclasses

import numpy as np
import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.collectives import cost, dispatch
from emulator.cluster.kernels import flops, seconds
from emulator.cluster.kernels import memory as moves
from emulator.cluster.topology import place
from emulator.jobs import iteration
from emulator.jobs.costed import closed_form_s
from emulator.jobs.costing import _device_s, _host_s, plan
from emulator.jobs.replay.engine import replay
from emulator.jobs.workload import models, transformer
from emulator.jobs.workload.checks import check
from emulator.jobs.workload.implementations import cross_entropies, implementations
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.memory import memory
from switchml.errors import ConfigError

DGX, NVL72 = clusters.load("h100-dgx"), clusters.load("gb200-nvl72")
QWEN = models.load("qwen3-30b-a3b")
CORE = transformer.Code(
    implementations()["megatron-core"], cross_entropies()["fused"], 1.3, (1e14, 1e14), (5e13, 5e13), 100.0
)


def job(**changes):
    return Job(**{"gpus": 16, "precision": "bf16", "implementation": "megatron-core", "zero": 1, **changes})


def test_expert_groups_are_folded_over_tensor_and_data_parallel_ranks():
    """Qwen3-235B on 256 H100, as Megatron Bridge has it: 32 expert-parallel ranks, but 16 data-parallel ones."""
    folded = Job(gpus=256, tp=2, pp=8, ep=32, sequence_parallel=True)
    assert (folded.dp, folded.expert_tp, folded.expert_dp, folded.expert_span) == (16, 1, 1, 16)
    unfolded = Job(gpus=256, tp=2, pp=8, ep=8)
    assert (unfolded.expert_tp, unfolded.expert_dp, unfolded.expert_span) == (2, 2, 8)
    assert Job(gpus=256, tp=2, pp=8, ep=8, etp=1, sequence_parallel=True).expert_dp == 4


@pytest.mark.parametrize(("wrong", "message"), [
    ({"ep": 64}, r"16 ranks of a stage \(tp 1 x dp 16\) can't be split into 64"),
    ({"ep": 16, "tp": 2}, "use sequence-parallel"), ({"ep": 2, "tp": 4, "etp": 3}, "etp 3 is not a divisor of the 4"),
    ({"dispatcher": "pigeons"}, "pigeons"), ({"overlap_experts": True}, "take ep of at least 2"),
    ({"overlap_experts": True, "ep": 2, "recompute": "full"}, "no full recompute"),
    ({"overlap_experts": True, "ep": 2, "pp": 2}, "virtual-stages of at least 2"),
])  # fmt: skip
def test_what_can_not_be_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        job(**wrong)


def test_etp_needs_experts():
    with pytest.raises(ConfigError, match="etp 1 splits experts, and llama3-8b has none"):
        plan(models.load("llama3-8b"), job(etp=1), DGX)


def test_ranks_share_the_work_however_experts_lie():
    """All ranks together do the same, and a rank sends its own part of the tokens."""
    tokens = 4096 * 8 * 2048 * 2
    for etp, ep, sent in ((2, 4, tokens // 2), (1, 4, tokens // 2), (1, 8, tokens // 2)):
        mine = job(tp=2, etp=etp, ep=ep, sequence_parallel=True, gpus=8)
        part = transformer.mlp(QWEN, mine, CORE)
        alone = transformer.mlp(QWEN, job(gpus=1), CORE)
        router = 2.0 * 4096 * 2048 * 128
        assert flops(part.forward) - router == pytest.approx((flops(alone.forward) - router) / 2)
        assert part.exchange_bytes == sent
        assert bool(part.reduce_bytes) == (etp == 2)


@pytest.mark.parametrize("fold", iteration.FOLDS)
@pytest.mark.parametrize("ep", [2, 4, 8])
def test_graphs_of_folded_groups(fold, ep):
    small = dataclasses.replace(QWEN, layers=2)
    made = plan(small, job(gpus=8, tp=4, etp=1, ep=ep, sequence_parallel=True, batch=4), DGX)
    graph, costs = iteration.build(made, fold)
    check(graph)
    folded = replay(*iteration.build(made, "all")).makespan_s
    assert replay(graph, costs).makespan_s == pytest.approx(folded, rel=1e-9)


def test_gradients_of_experts_are_added_up_by_the_ranks_that_hold_them():
    """Eight experts' ranks on each of two nodes: a pair adds up an expert, over the network; on one node nobody."""
    made = plan(QWEN, job(ep=8), DGX)
    assert made.expert_data_parallel == place(2, 8, 8)
    own = cost(DGX, "reduce_scatter", 2e9, place(2, 8, 8)).seconds
    others = cost(DGX, "reduce_scatter", 1e9, place(16, 1, 8)).seconds
    assert made.reduce(1.5e9, experts=1e9).seconds == pytest.approx(own + others)
    alone = plan(QWEN, job(ep=8, gpus=8), DGX)
    assert alone.reduce(1e9, experts=1e9).seconds == alone.gather(1e9, experts=1e9)[1].seconds == 0
    assert sum(stage.expert_parameters for stage in made.stages) == pytest.approx(QWEN.routed_parameters * 48 / 8)


def test_optimizer_states_of_experts_are_sharded_over_the_ranks_that_hold_them():
    """12 bytes for each parameter, over 16 ranks, and over 2."""
    experts, mine = QWEN.routed_parameters * QWEN.layers / 8, job(ep=8, batch=16)
    dense = mine.stage_parameters(QWEN, 0) - experts
    assert memory(QWEN, mine).optimizer == pytest.approx(12 * (dense / 16 + experts / 2))


def test_a_copy_for_each_node_takes_what_was_measured():
    """4,096 tokens of 4,096 bytes to 8 experts on 16 H100: 0.67 ms; a copy for each expert takes 1.7."""
    size = 4096 * 8 * 2048 * 2
    where = place(16, 1, 8)
    assert dispatch(DGX, size, where, 8).seconds == pytest.approx(0.67e-3, rel=0.25)
    assert dispatch(DGX, size, where, 8).seconds < 0.5 * cost(DGX, "all_to_all", size, where).seconds
    assert dispatch(DGX, size, where, 1).leaving_bytes == pytest.approx(16 * size / 2)


def test_the_dispatcher_is_the_recipes_unless_it_is_named():
    """All-to-all inside a node of eight, whose host waits in every layer; else a copy for each node."""
    for ep, cluster, waits in ((8, DGX, True), (16, DGX, False), (8, NVL72, False)):
        made = plan(QWEN, job(ep=ep), cluster)
        assert [step.waits for step in made.stages[0].steps if step.name == "mlp"] == [waits] * QWEN.layers
    asked, chosen = (plan(QWEN, job(ep=8, dispatcher=name), DGX) for name in ("all-to-all", ""))
    assert closed_form_s(asked) == closed_form_s(chosen) > closed_form_s(plan(QWEN, job(ep=8, dispatcher="flex"), DGX))
    assert any("all-to-all (a copy for each expert)" in line for line in chosen.assumptions)


def test_a_host_that_waits_does_not_catch_up_in_backward():
    """Forward and backward are each as long as device and host together; where it runs ahead, their sums are."""
    made, ahead = (plan(QWEN, job(ep=8, dispatcher=name), DGX) for name in ("all-to-all", "flex"))
    exponent = DGX.software.overlap_exponent
    for stage, parts in ((made.stages[0], True), (ahead.stages[0], False)):
        device = np.array([_device_s(list(stage.steps), way) for way in (0, 1)])
        host = _host_s(list(stage.steps), made.job, DGX.software)
        if not parts:
            device, host = device.sum(keepdims=True), host.sum(keepdims=True)
        assert device.sum() == pytest.approx(stage.device_s)
        assert stage.seconds == pytest.approx(((device**exponent + host**exponent) ** (1 / exponent)).sum())


def test_loops_over_experts_take_host_time_and_fp8_quantizes_each():
    """Sixteen experts on a rank: two products forward and four backward; in fp8 what goes into a product, and gradients
    that come out, three kernels each on Hopper."""
    half, quarter = (plan(QWEN, job(ep=8, precision=precision), DGX) for precision in ("bf16", "fp8"))
    looped = [next(s.looped_kernels for s in made.stages[0].steps if s.name == "mlp") for made in (half, quarter)]
    assert looped == [(2 * 15, 4 * 15), (2 * 15 + 2 * 47, 4 * 15 + 2 * 47)]
    rows = [np.array([moves(1e6, launches)]) for launches in (0, 48)]
    one, many = (float(seconds(row, DGX.device, DGX.software)[0]) for row in rows)
    assert many - one == pytest.approx(47 * DGX.software.kernel_s)


def test_biases_of_experts_are_kernels_of_their_own():
    """28 bytes for each element that comes out of an expert, forward and backward (TEGroupedMLP._apply_bias)."""
    biased = dataclasses.replace(QWEN, biases=True)
    bare, more = (transformer.mlp(model, job(ep=8), CORE) for model in (QWEN, biased))
    out = 4096 * 8 * 2048
    moved = [rows[rows[:, 1] == 0, 4].sum() for rows in (bare.forward, more.forward, bare.backward, more.backward)]
    assert moved[1] - moved[0] == 12 * out and moved[3] - moved[2] == 16 * out


def test_scaled_rotary_embeddings_are_not_fused():
    scaled = dataclasses.replace(QWEN, scaled_rotary=True)
    bare, more = (transformer.attention(model, job(), CORE) for model in (QWEN, scaled))
    turned = 2 * 4096 * (32 + 4) * 128
    moved = [rows[rows[:, 1] == 0, 4].sum() for rows in (bare.forward, more.forward, bare.backward, more.backward)]
    assert moved[1] - moved[0] == (12 - 2) * turned and moved[3] - moved[2] == (12 - 2) * turned
    assert len(more.forward) - len(bare.forward) == 2 * 12 - 1


def test_experts_on_few_nodes_are_reached_by_fewer_copies():
    size, where = 4096 * 8 * 7168 * 2, place(64, 1, 8)
    free, limited = (dispatch(DGX, size, where, 8, most).leaving_bytes for most in (0, 4))
    assert limited / free == pytest.approx(4 * (1 - 0.75**8) / (8 * (1 - 0.875**8)))
    assert dispatch(DGX, size, where, 8, 100).leaving_bytes == free


def test_exchanges_behind_another_micro_batch():
    shown, hidden = (plan(QWEN, job(ep=8, overlap_experts=hides), DGX) for hides in (False, True))
    cost_s = [next(s.exchange.seconds for s in made.stages[0].steps if s.name == "mlp") for made in (shown, hidden)]
    assert cost_s[1] == pytest.approx(cost_s[0] * (1 - DGX.software.expert_overlap))
    assert any("beside another micro-batch" in line for line in hidden.assumptions)


def test_cuda_graphs_launch_a_layer_at_once():
    """But for experts; what the host takes shows in small micro-batches."""
    small = Job(gpus=8, batch=8, sequence=512, precision="bf16", implementation="megatron-core")
    dense = models.load("llama3-8b")
    own, graphs = plan(dense, small, DGX), plan(dense, small.replace(cuda_graphs=True), DGX)
    layer = next(step for step in graphs.stages[0].steps if step.name == "mlp")
    assert (layer.forward_kernels, layer.backward_kernels, layer.forward_s) == (1, 1, own.stages[0].steps[2].forward_s)
    assert graphs.stages[0].seconds < 0.8 * own.stages[0].seconds
    routed = [plan(QWEN, job(ep=8, cuda_graphs=on), DGX).stages[0].steps[2] for on in (False, True)]
    assert 1 < routed[1].forward_kernels < routed[0].forward_kernels
    with pytest.raises(ConfigError, match="recompute is full"):
        small.replace(cuda_graphs=True, recompute="full")


def test_captured_layers_are_one_launch():
    """Where HybridEP brings tokens, Megatron Bridge captures attention and router."""
    made, eager = (plan(QWEN, job(ep=16, dispatcher=name), DGX) for name in ("flex", "all-to-all"))
    kernels = [{s.name: (s.forward_kernels, s.backward_kernels) for s in one.stages[0].steps} for one in (made, eager)]
    assert kernels[0]["attention"] == (1, 1) and min(kernels[1]["attention"]) > 5
    assert kernels[0]["mlp"][0] < kernels[1]["mlp"][0] - 10
