"""What torch.compile makes of a script: kernels, and tensors that never exist, counted by hand."""

import textwrap

import pytest

from tests.support.play import play

torch = pytest.importorskip("torch")

ROWS, WIDTH = 131072, 1024
SIZE = ROWS * WIDTH * 4
SCRIPT = """
import torch, torch.nn as nn
torch.backends.cuda.matmul.allow_tf32 = True
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)
    def forward(self, x):
        h = self.one(x)
        h = torch.tanh(0.5 * h + h.pow(3)) * h
        return self.two(h).square().mean()
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
COMPILE
for step in range(9):
    net(torch.zeros(131072, 1024, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _played(tmp_path, text):
    outcome = play(tmp_path, text)
    assert "result" in outcome, outcome
    return outcome["result"]


def test_fused(tmp_path):
    """Between the products there is one kernel forward, which reads h and writes what the second product reads, and one
    backward; neither the powers nor tanh's result exist, and the mean's kernel reads the second product's result."""
    eager = _played(tmp_path, SCRIPT.replace("COMPILE", ""))
    for compiled in ("net = torch.compile(net)", "net.compile(mode='default')"):
        result = _played(tmp_path, SCRIPT.replace("COMPILE", compiled))
        assert result["notes"] == []
        rate = 4.8e12 if "H200" in result["accelerator"] else 3.35e12
        # Forward: h in, out; square and mean: y in. Backward: y in, its gradient out; h and a gradient in, one out.
        element_wise = (2 + 3) * SIZE / (rate * 0.85) + 2 * SIZE / (rate * 0.85) + SIZE / (rate * 0.75)
        own = sum(result["parts"].get(kind, 0) for kind in ("element-wise", "reductions"))
        filled = SIZE / (rate * 0.85)  # zeros(), which is not compiled
        assert own == pytest.approx(element_wise + filled, rel=0.05)
        assert own < 0.6 * sum(eager["parts"].get(kind, 0) for kind in ("element-wise", "reductions"))
        assert result["parts"]["matrix products"] == pytest.approx(eager["parts"]["matrix products"], rel=1e-6)
        # x, h, what the second product reads, y and its gradient: at the peak.
        assert result["allocated_bytes"] == pytest.approx(5 * SIZE, rel=0.03)
        assert eager["allocated_bytes"] >= 8 * SIZE


def test_loss_in_half_precision(tmp_path):
    """Cross entropy of half-precision logits: no float32 copy of them exists, forward or backward."""
    text = """
    import torch
    logits = torch.nn.Parameter(torch.zeros(4096, 32768, device="cuda", dtype=torch.bfloat16))
    labels = torch.zeros(4096, dtype=torch.int64, device="cuda")
    optimizer = torch.optim.SGD([logits], 0.1)
    def loss_of(logits):
        return torch.nn.functional.cross_entropy((logits * 2).float(), labels)
    COMPILE
    for step in range(9):
        loss_of(logits).backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    half = 4096 * 32768 * 2
    eager = _played(tmp_path, text.replace("COMPILE", ""))
    result = _played(tmp_path, text.replace("COMPILE", "loss_of = torch.compile(loss_of, fullgraph=True)"))
    assert eager["allocated_bytes"] >= 6 * half
    assert result["allocated_bytes"] == pytest.approx(2 * half, rel=0.01)  # weights and their gradient


def test_decorated_and_different(tmp_path):
    """A decorator with arguments; iterations that have little in common are played eagerly, and that is said."""
    text = """
    import torch
    weight = torch.nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    @torch.compile(dynamic=True)
    def step_of(rows):
        return (torch.zeros(rows, 1024, device="cuda") @ weight).exp().sum()
    for step in range(9):
        step_of(ROWS).backward()
        optimizer.step()
    """
    assert _played(tmp_path, text.replace("ROWS", "64"))["notes"] == []
    (note,) = _played(tmp_path, text.replace("ROWS", "64 + step"))["notes"]
    assert note == "torch.compile is ignored, as iterations differ: operators are those of eager mode"


@pytest.mark.parametrize(("elements", "steps"), [("1 << 32", 2), ("1 << 34", 9)])
def test_more_memory_than_there_is(tmp_path, elements, steps):
    """What compiled code saves is not known before the fourth iteration: eager memory that does not fit is an error in
    a script that ends earlier, and so is compiled memory."""
    text = f"""
    import torch
    weight = torch.nn.Parameter(torch.zeros(8, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    @torch.compile
    def loss_of(weight):
        rows = torch.zeros({elements}, device="cuda").view(8, -1).transpose(0, 1).contiguous()
        return (torch.sort(rows * 2)[0] * weight).sum()
    for step in range({steps}):
        loss_of(weight).backward()
        optimizer.step()
    """
    outcome = play(tmp_path, text)
    assert "result" not in outcome
    told = "known from the fourth iteration on" if steps < 4 else "CUDA out of memory"
    assert told in outcome.get("error", "") + outcome.get("full", "")


def _plan(*calls, freed=()):
    """The plan of one compiled call, of (operator, storages that it reads, storages that it makes): all of a size."""
    from emulator.cluster import cluster
    from emulator.peers.script.costs import Costs
    from emulator.peers.script.fusion import Launch, Recording, plan
    from emulator.peers.script.operators import Operator, TensorShape

    shape = TensorShape((256, 256), (256, 1), 0, torch.float32, 4)
    launches = []
    for number, (name, reads, makes) in enumerate(calls):
        shapes = [(shape,) * len(some) for some in (reads, makes)]
        operator = Operator(number, name, *shapes, {}, (False, False), shape.bytes, True)
        launches.append(Launch(operator, (1, False), reads, list(makes)))
    machine = cluster.load("h100-dgx")
    made = plan(Recording(launches, dict.fromkeys(freed, len(launches))), Costs(machine.device, machine.software))
    begins = [place for place, step in enumerate(made.steps) if step.seconds]
    return begins, {calls[place][2][which] for place, which in made.absent}


def test_what_waits_is_not_joined():
    """A sum that waits for a product of a kernel's result can't be in that kernel; what nobody reads joins later."""
    calls = [
        ("aten.mul.Tensor", (1,), (2,)), ("aten.exp.default", (2,), (3,)), ("aten.mm.default", (2, 1), (4,)),
        ("aten.add.Tensor", (3, 4), (5,)), ("aten.tanh.default", (1,), (6,)), ("aten.mul.Tensor", (5, 6), (7,)),
    ]  # fmt: skip
    begins, absent = _plan(*calls, freed=(2, 3, 4, 5, 6))
    assert begins == [0, 2, 3] and absent == {5, 6}


def test_collectives_and_extensions_stand_alone():
    """What they read exists, though nobody else reads it; what is never given back exists, too."""
    calls = [
        ("aten.relu.default", (1,), (2,)),
        ("_c10d_functional.all_reduce.default", (2,), (3,)),
        ("aten.exp.default", (3,), (4,)),
        ("mine.scale.default", (4,), (5,)),
        ("aten.exp.default", (5,), (6,)),
        ("aten.neg.default", (6,), (7,)),
    ]
    begins, absent = _plan(*calls, freed=(2, 3, 4, 5, 6))
    assert begins == [0, 1, 2, 3, 4] and absent == {6}
    assert _plan(*calls, freed=(2, 3, 4, 5))[1] == set()


def test_graphs(tmp_path):
    """As CUDA graphs, all kernels of a call take one launch forward and one backward; outside nothing changes."""
    text = """
    import torch, torch.nn as nn
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(200)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, fused=True)
    COMPILE
    for _ in range(9):
        net(torch.zeros(64, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    text = textwrap.dedent(text)
    default = _played(tmp_path, text.replace("COMPILE", "net = torch.compile(net, mode='default')"))
    for option in ("mode='reduce-overhead'", "options={'triton.cudagraphs': True}"):
        graphs = _played(tmp_path, text.replace("COMPILE", f"net = torch.compile(net, {option})"))
        kernels_s = sum(seconds for part, seconds in graphs["parts"].items() if part != "waiting for the host")
        assert default["parts"]["waiting for the host"] > kernels_s > 5 * graphs["parts"]["waiting for the host"]
        assert graphs["parts"]["matrix products"] == pytest.approx(default["parts"]["matrix products"])


def test_what_is_never_called(tmp_path):
    """A package that compiles a function at import leaves three iterations and the memory's limit as they are."""
    text = """
    import torch

    @torch.compile
    def unused():
        raise AssertionError

    weight = torch.nn.Parameter(torch.zeros(8, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(9):
        weight.sum().backward()
        optimizer.step()
        assert step < 3
    """
    outcome = play(tmp_path, text)
    assert "result" in outcome and not outcome["result"]["notes"], outcome
