"""Training loops without an optimizer of torch, or with a new one for each step, and what scripts save and load."""

import textwrap

import pytest

from tests.support.play import play

pytest.importorskip("torch")

LOOP = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
for step in range(9):
    assert step < 4, "the script runs on after its iterations"
    model.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
"""
WEIGHTS = 4 * (1024 * 1024 + 1024)
UPDATES = {
    "data": "for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)",
    "no grad": "with torch.no_grad():\n    for p in model.parameters(): p -= 0.1 * p.grad",
    "foreach": "own = list(model.parameters())\nwith torch.no_grad(): torch._foreach_add_(own, [p.grad for p in own])",
    "a new optimizer": "torch.optim.SGD(model.parameters(), 0.1).step()",
}


@pytest.mark.parametrize("how", UPDATES)
def test_updates(tmp_path, how):
    """Each update of the parameters ends an iteration; the last of three is reported."""
    result = play(tmp_path, LOOP + textwrap.indent(UPDATES[how], "    "))["result"]
    assert "the script ran one iteration: its time includes setup" not in result["notes"]
    assert result["memory"]["weights"] == WEIGHTS
    assert result["memory"]["gradients"] == WEIGHTS
    assert result["parts"]["matrix products"] > 0


SHARDS = {
    "data": "parameter.data.add_(parameter.grad, alpha=-0.1)",
    "no grad": "parameter -= 0.1 * parameter.grad",
    "local": "parameter.to_local().sub_(parameter.grad.to_local())",
}


@pytest.mark.parametrize("how", SHARDS)
def test_updates_of_shards(tmp_path, how):
    """FSDP's shards have gradients without an autograd node of their own."""
    text = LOOP.replace("for step", "dist.init_process_group('nccl')\nfully_shard(model)\nfor step").replace(
        "import torch", "import torch, torch.distributed as dist\nfrom torch.distributed.fsdp import fully_shard"
    )
    text += f"    with torch.no_grad():\n        for parameter in model.parameters():\n            {SHARDS[how]}\n"
    result = play(tmp_path, text, world=4)["result"]
    assert "the script ran one iteration: its time includes setup" not in result["notes"]
    assert result["memory"]["weights"] == WEIGHTS / 4
    assert result["collectives"]["reduce_scatter"]["calls"] == 1


OPTIMIZERS = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()

class Container(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self):
        self.inner.step()

def train(optimizer, size):
    model(torch.randn(size, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

first, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
container = Container(first)
for step in range(9):
    assert step < 4, "the script runs on after its iterations"
"""
STEPS = {
    "alternating": ("train(first, 64), train(second, 64)", 2),
    "nested": ("train(container, 64)", 1),
    "in succession": ("train(second if step else first, 64)", 1),
}


@pytest.mark.parametrize("how", STEPS)
def test_optimizers_of_the_same_parameters(tmp_path, how):
    """What the script repeats is an iteration, whether it has two steps of optimizers or one."""
    text, steps = STEPS[how]
    result = play(tmp_path, OPTIMIZERS + f"    {text}\n")["result"]
    assert result["parts"]["matrix products"] > 0
    single = play(tmp_path, OPTIMIZERS + "    train(first, 64)\n")["result"]
    assert result["operators"] == pytest.approx(steps * single["operators"], abs=4)


ADVERSARIES = """
import torch
critic, generator = (torch.nn.Linear(1024, 1024).cuda() for _ in range(2))
of_critic, of_generator = (torch.optim.SGD(one.parameters(), 0.1) for one in (critic, generator))

def train(model, optimizer):
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()

for step in range(STEPS):
    if step % 5 == TURN:
        train(generator, of_generator)
    train(critic, of_critic)
"""


@pytest.mark.parametrize(("turn", "steps", "trained"), [(0, 30, 6), (4, 30, 6), (9, 30, 1), (9, 3, 1)])
def test_critic_with_more_steps(tmp_path, turn, steps, trained):
    """An iteration of a WGAN has five steps of the critic and one of the generator, whichever is first; of a script
    that does not train its generator, or not yet, one of the critic."""
    outcome = play(tmp_path, ADVERSARIES.replace("TURN", str(turn)).replace("STEPS", str(steps)))["result"]
    single = play(tmp_path, OPTIMIZERS + "    train(first, 64)\n")["result"]["parts"]["matrix products"]
    assert outcome["parts"]["matrix products"] == pytest.approx(trained * single)
    assert ("optimizers that made no step in the iteration: 1" in outcome["notes"]) == (turn == 9 and steps == 30)


def test_optimizer_after_changed_input(tmp_path):
    """Once a script has an optimizer, only its steps end iterations: an input changed by its gradient does not."""
    text = """
    import torch
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        image = torch.randn(64, 1024, device="cuda", requires_grad=True)
        for attack in range(5):
            model(image).square().mean().backward()
            image.data.add_(image.grad)
        optimizer.step()
        print("step", step)
    """
    assert play(tmp_path, textwrap.dedent(text))["result"]["operators"] > 5 * 4
    assert (tmp_path / "out").read_text().count("step") == 2


def test_saved_and_loaded(tmp_path):
    """torch.load reads what torch.save wrote, weights only, where map_location says, with the values that are known."""
    text = """
    import torch
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()

    step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "few": torch.tensor([1.0, 2.0]).cuda()}
    torch.save(saved, "FILE")
    before = torch.cuda.memory_allocated()
    for place in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, location: storage):
        loaded = torch.load("FILE", map_location=place)
        assert not loaded["model"]["weight"].is_cuda and loaded["few"].tolist() == [1.0, 2.0]
    assert torch.cuda.memory_allocated() == before
    loaded = torch.load("FILE")
    assert loaded["model"]["weight"].is_cuda and loaded["few"].tolist() == [1.0, 2.0]
    assert torch.cuda.memory_allocated() > before + 3 * 4 * 1024 * 1024
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    step()
    step()
    """
    outcome = play(tmp_path, textwrap.dedent(text).replace("FILE", str(tmp_path / "model.pt")))
    assert "result" in outcome, outcome


def test_compiled_modules(tmp_path):
    """torch.compile returns torch's wrapper, which scripts unwrap and copy; the module itself stays uncompiled."""
    text = """
    import copy, torch
    plain = torch.nn.Linear(1024, 1024).cuda()
    model = torch.compile(plain)
    assert isinstance(model, torch._dynamo.OptimizedModule) and model._orig_mod is plain is not model
    assert not hasattr(plain, "_orig_mod") and list(plain.state_dict()) == ["weight", "bias"]
    assert list(model.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    assert copy.deepcopy(model)._orig_mod.weight.is_cuda
    plain.compile()
    copy.deepcopy(plain)
    torch.compile(lambda: 1)  # never called
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
    """
    outcome = play(tmp_path, textwrap.dedent(text))
    assert "result" in outcome, outcome


def test_set_up_of_groups(tmp_path, monkeypatch):
    """Torch's barrier in a store, which other ranks would have to reach, and the backend that the script requests."""
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    text = """
    import torch.distributed as dist
    dist.init_process_group("cpu:gloo,cuda:nccl")
    gloo, same, foreign = dist.new_group(backend="gloo"), dist.new_group(), dist.new_group([1, 2])
    assert dist.get_backend() == dist.get_backend(same) == "cpu:gloo,cuda:nccl" and dist.get_backend(gloo) == "gloo"
    """
    outcome = play(tmp_path, textwrap.dedent(text) + OPTIMIZERS + "    train(first, 64)\n", world=8)
    assert "result" in outcome, outcome


def test_time_outs(tmp_path):
    """Gloo's barrier with a time-out, a method of the process group; a later time-out of a group's collectives."""
    text = """
    import datetime, torch, torch.distributed as dist
    dist.init_process_group("nccl")
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=9))
    group.monitored_barrier()
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(minutes=2), group)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(minutes=2))
    weight = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(4):
        weight.square().sum().backward()
        optimizer.step()
    """
    assert "result" in play(tmp_path, textwrap.dedent(text), world=8)
