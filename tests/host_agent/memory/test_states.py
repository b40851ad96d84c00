"""Offloaded and pruned states beside torch.optim.AdamW, and what they take in memory beside the published formulas."""

import copy
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from emulator.jobs.memory_options import offload_bytes, samo_bytes  # noqa: E402
from host_agent.memory import OffloadedAdam, PrunedAdam, Tracker, pruned  # noqa: E402
from host_agent.memory.adam import vector  # noqa: E402
from switchml.errors import ConfigError, UnsupportedTensor  # noqa: E402
from tests.support.ranks import run_ranks  # noqa: E402

OPTIONS = {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1}


def network(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 41), nn.Tanh(), nn.Linear(41, 7)).to(dtype)


def train(model, optimizer, steps=4, first=0):
    for step in range(first, first + steps):
        batch = torch.randn(8, 30, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(batch.to(next(model.parameters()).dtype)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def by_adamw(steps=4):
    model = network()
    return train(model, torch.optim.AdamW(model.parameters(), **OPTIONS), steps)


@pytest.fixture
def alone():
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("bucket", [300, 1600, 10**6])
def test_offloaded_states_change_no_bit(bucket, tmp_path):
    model = network()
    optimizer = OffloadedAdam(model.parameters(), bucket=bucket, folder=str(tmp_path), **OPTIONS)
    assert torch.equal(train(model, optimizer), by_adamw())
    assert optimizer.stats()["host_bytes"] == 8 * (30 * 41 + 41 + 41 * 7 + 7)


def test_nothing_pruned_changes_no_bit():
    model = network()
    assert torch.equal(train(model, PrunedAdam(pruned(model, 0.0), **OPTIONS)), by_adamw())


def test_gradients_averaged_by_the_optimizer_or_by_ddp(alone):
    model = network()
    offloaded = OffloadedAdam(model.parameters(), bucket=300, group=alone, **OPTIONS)
    assert torch.equal(train(model, offloaded), by_adamw())
    wrapped = DistributedDataParallel(network())
    assert torch.equal(train(wrapped, OffloadedAdam(wrapped.parameters(), **OPTIONS)), by_adamw())
    # Pruned: the same with and without DistributedDataParallel, and in buckets.
    wrapped, model, single = DistributedDataParallel(network()), network(), network()
    hooked = train(wrapped, PrunedAdam(pruned(wrapped, 0.8), **OPTIONS))
    assert torch.equal(train(model, PrunedAdam(pruned(model, 0.8), bucket_bytes=100, **OPTIONS)), hooked)
    dense = wrapped.module[0].weight
    assert int((dense.grad != 0).sum()) <= int((dense != 0).sum()) == dense.numel() - round(0.8 * dense.numel())
    kept = pruned(single, 0.8)
    before = {p: p.detach() != 0 for p in single.parameters() if p.ndim > 1}
    train(single, PrunedAdam(kept, **OPTIONS))
    assert all(torch.equal(p.detach() != 0, there) for p, there in before.items())


def test_pruned_weights_stay_zero_and_the_others_learn_as_with_masked_gradients():
    model, masked = network(), network()
    states = pruned(model, 0.9)
    optimizer = PrunedAdam(states, **OPTIONS)
    masks = [(p.detach() != 0) if p.ndim > 1 else torch.ones_like(p, dtype=torch.bool) for p in model.parameters()]
    plain = torch.optim.AdamW(masked.parameters(), **OPTIONS)
    for p, mask in zip(masked.parameters(), masks, strict=True):
        p.data.mul_(mask)
        p.register_hook(lambda gradient, mask=mask: gradient * mask)
    assert torch.equal(train(model, optimizer), train(masked, plain))
    assert states.stats()["left"] == sum(int(mask.sum()) for mask in masks)
    assert all(p.grad is None for p in model.parameters())


def test_gradients_of_two_passes_add_up():
    once, twice = network(), network()
    batch = torch.randn(8, 30)
    optimizers = [PrunedAdam(pruned(model, 0.5), **OPTIONS) for model in (once, twice)]
    (once(batch).sum() * 2).backward()
    twice(batch).sum().backward()
    twice(batch).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_masters_are_kept_in_full_precision():
    """Steps too small for bfloat16 add up."""
    for make in (
        lambda model: OffloadedAdam(model.parameters(), lr=1e-5, weight_decay=0),
        lambda model: PrunedAdam(pruned(model, 0.0), lr=1e-5, weight_decay=0),
    ):
        model = network(torch.bfloat16)
        before = {p: p.detach().float() for p in model.parameters()}
        optimizer = make(model)
        train(model, optimizer, steps=3)
        for p, old in before.items():
            master = optimizer.state[p]["master"]
            assert 0 < float((master.view_as(p) - old).abs().mean()) < 4e-5
            assert torch.equal(p, master.view_as(p).bfloat16())


@pytest.mark.parametrize("kind", ["offloaded", "pruned"])
def test_training_goes_on_from_a_state_dict(kind, tmp_path):
    def start():
        model = network(torch.bfloat16)
        made = OffloadedAdam(model.parameters(), bucket=500, **OPTIONS)
        return model, made if kind == "offloaded" else PrunedAdam(pruned(model, 0.7), **OPTIONS)

    whole = train(*start(), steps=6)
    model, optimizer = start()
    train(model, optimizer, steps=3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved")
    saved = torch.load(tmp_path / "saved")
    model, optimizer = start()
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(41, 30))  # other weights would be pruned
    if kind == "pruned":
        optimizer = PrunedAdam(pruned(model, 0.7), **OPTIONS)
    optimizer.param_groups[0]["lr"] = 1.0
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(train(model, optimizer, steps=3, first=3), whole)


def test_adamw_state_dicts_are_taken_and_given():
    model = network()
    plain = torch.optim.AdamW(model.parameters(), **OPTIONS)
    train(model, plain, steps=2)
    other = copy.deepcopy(model)
    offloaded = OffloadedAdam(other.parameters(), lr=1)
    offloaded.load_state_dict(plain.state_dict())
    train(other, offloaded, steps=2, first=2)
    again = torch.optim.AdamW(other.parameters(), lr=1)
    again.load_state_dict(offloaded.state_dict())
    assert torch.equal(train(other, again, first=4, steps=1), train(model, plain, first=2, steps=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["offloaded", "pruned"])
def test_states_go_through_distributed_checkpoints(kind, dtype):
    """Which key them by the parameters' names."""

    def start():
        model = network(dtype)
        return model, OffloadedAdam(model.parameters()) if kind == "offloaded" else PrunedAdam(pruned(model, 0.5))

    whole = train(*start(), steps=4)
    model, optimizer = start()
    train(model, optimizer, steps=2)
    saved = copy.deepcopy((model.state_dict(), get_optimizer_state_dict(model, optimizer)))
    model, optimizer = start()
    model.load_state_dict(saved[0])
    set_optimizer_state_dict(model, optimizer, saved[1])
    assert torch.equal(train(model, optimizer, steps=2, first=2), whole)


@pytest.mark.parametrize("share", [None, 0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_others_write_become_masters(share, dtype):
    """After that, all is as if the optimizer had been made then; what nobody wrote keeps its precision."""
    model = network(dtype)
    optimizer = OffloadedAdam(model.parameters()) if share is None else PrunedAdam(pruned(model, share))
    train(model, optimizer, steps=2)
    bias, weight = model[0].bias, model[0].weight
    kept = optimizer.state[bias]["master"].clone()
    with torch.no_grad():
        weight.mul_(torch.where(weight != 0, 2.0, 0.0).to(dtype))
    expected = vector(weight).float()
    optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
    train(model, optimizer, steps=1, first=2)
    master, index = (optimizer.state[weight].get(name) for name in ("master", "index"))
    assert torch.equal(master.reshape(-1), expected if index is None else expected[index])
    assert torch.equal(optimizer.state[bias]["master"], kept)


@pytest.mark.parametrize("make, complaint", [
    (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
    (lambda p: torch.optim.AdamW(p, maximize=True), "maximize"),
    (lambda p: torch.optim.Adam(p, weight_decay=0.1), "decoupled_weight_decay=False"),
    (lambda p: torch.optim.SGD(p, momentum=0.9), "no 'betas'"),
    (lambda p: torch.optim.AdamW([{"params": [each]} for each in p]), "expected \\[4\\]"),
    (lambda p: torch.optim.NAdam(p), "'mu_product'"),
])  # fmt: skip
def test_states_of_other_rules_are_refused(make, complaint):
    model = network()
    other = make(list(model.parameters()))
    train(model, other, steps=1)
    with pytest.raises(ConfigError, match=complaint):
        OffloadedAdam(model.parameters()).load_state_dict(other.state_dict())


def test_groups_frozen_weights_layouts_and_schedules():
    def make(optimizer):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 2, 3))
        model = model.to(memory_format=torch.channels_last)
        model[1].requires_grad_(False)
        groups = [{"params": model[0].parameters(), "weight_decay": 0.0}, {"params": model[1].parameters()}]
        made = optimizer([*groups, {"params": model[2].parameters(), "lr": 0.1}], lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
        for _ in range(3):
            made.zero_grad()
            model(torch.ones(1, 2, 9, 9)).sum().backward()
            made.step(lambda: None)
            schedule.step()
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    assert torch.equal(make(lambda groups, lr: OffloadedAdam(groups, lr, bucket=64)), make(torch.optim.AdamW))


def measured_peak(model, optimizer) -> int:
    """Bytes of weights, gradients and states on the device at the highest point of a step."""
    with Tracker() as tracker:
        there = list(model.parameters())
        if isinstance(optimizer, PrunedAdam):  # else they are in a file
            there += [tensor for state in optimizer.state.values() for tensor in state.values()]
        for tensor in there:
            tensor.detach()  # an operator, whose results are counted
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 128, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
    return tracker.peak


@pytest.mark.parametrize("option", ["offloaded", "pruned"])
def test_memory_is_what_the_formulas_say(option):
    """AxoNN's 4 φ + 16 · bucket and SAMO's 2 φ + 24 (1 − p) φ, of weights, gradients and states."""
    model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(24))).bfloat16()
    parameters = 24 * 128 * 128
    if option == "offloaded":
        bucket = parameters // 4
        peak = measured_peak(model, OffloadedAdam(model.parameters(), bucket=bucket))
        assert peak == pytest.approx(offload_bytes(parameters, bucket), rel=0.05)
    else:
        peak = measured_peak(model, PrunedAdam(pruned(model, 0.9)))
        assert peak == pytest.approx(samo_bytes(parameters, 0.9), rel=0.05)


@pytest.mark.parametrize(("make", "complaint"), [
    (lambda m: OffloadedAdam(m.parameters(), lr=-1), "lr=-1"),
    (lambda m: OffloadedAdam(m.parameters(), betas=(0.9, 1.0)), "betas="),
    (lambda m: OffloadedAdam(m.parameters(), bucket=1), "bucket=1"),
    (lambda m: OffloadedAdam(m.double().parameters()), "float64"),
    (lambda m: pruned(m, 1.0), "share=1.0"),
    (lambda m: pruned(m, 0.5, masks={"2": torch.ones(1)}), "no parameter '2'"),
    (lambda m: pruned(m, 0.5, masks={"2.weight": torch.ones(7, 41)}), "expected bool, \\(7, 41\\)"),
    (lambda m: PrunedAdam(pruned(m, 0.5), params=network().parameters()), "of the model that was pruned"),
    (lambda m: PrunedAdam(pruned(m, 0.5), bucket_bytes=0), "bucket_bytes=0"),
])  # fmt: skip
def test_nonsense_is_refused(make, complaint):
    with pytest.raises((ConfigError, UnsupportedTensor), match=complaint):
        make(network())


def test_states_of_another_model_are_refused_and_change_nothing():
    model = network()
    for optimizer in (OffloadedAdam(model.parameters(), **OPTIONS), PrunedAdam(pruned(model, 0.5), **OPTIONS)):
        train(model, optimizer, steps=1)
        before = copy.deepcopy(optimizer.state_dict())
        other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
        foreign = torch.optim.AdamW(other.parameters())
        other(torch.ones(2, 3)).sum().backward()
        foreign.step()
        with pytest.raises(ConfigError, match="of parameter 0 is"):
            optimizer.load_state_dict(foreign.state_dict())
        for number, saved in before["state"].items():
            for name, value in saved.items():
                assert torch.equal(optimizer.state_dict()["state"][number][name], value)


@pytest.mark.slow
def test_a_checkpoint_of_shards_has_each_ranks_states(tmp_path):
    """Plain tensors would be taken for copies, and rank 0's saved for all."""
    for rank in run_ranks(Path(__file__).parent / "sharded_states_script.py", 2, tmp_path):
        assert all(json.loads(rank.out).values()), rank.out
