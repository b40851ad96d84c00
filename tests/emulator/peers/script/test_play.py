"""Scripts on GPUs that are not there: what they allocate, exchange and read, beside what follows from their shapes."""

import textwrap

import pytest

from tests.support.play import play

pytest.importorskip("torch")

MODEL = """
import os, torch, torch.nn as nn, torch.distributed as dist
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
PARAMETERS = 1024 * 4096 * 2 + 4096 + 1024
"""
TRAIN = """
for step in range(9):
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BYTES = 4 * (1024 * 4096 * 2 + 4096 + 1024)


def test_data_parallel(tmp_path):
    """DDP with automatic mixed precision, a scaler and clipping: every gradient is reduced once, the parts add up."""
    text = """
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("nccl")
    assert dist.get_world_size() == 16 and torch.cuda.device_count() == 8
    ddp = DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.AdamW(ddp.parameters())
    scaler = torch.amp.GradScaler()
    for step in range(9):
        with torch.autocast("cuda", torch.bfloat16):
            hidden = ddp(torch.randn(64, 1024, device="cuda"))
            assert hidden.dtype == torch.bfloat16 and hidden.is_cuda
        loss = hidden.float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 65536.0
        assert isinstance(loss.item(), float) and step < 3
    """
    result = play(tmp_path, MODEL + textwrap.dedent(text), world=16)["result"]
    assert sum(result["parts"].values()) == pytest.approx(result["iteration_s"])
    assert result["collectives"]["all_reduce"]["bytes"] == BYTES
    assert result["memory"]["weights"] == pytest.approx(BYTES, rel=1e-3)
    assert result["memory"]["gradients"] == pytest.approx(BYTES, rel=1e-3)
    assert result["memory"]["optimizer states"] == pytest.approx(2 * BYTES, rel=1e-3)
    assert sum(result["memory"].values()) == result["allocated_bytes"] <= result["reserved_bytes"]
    assert result["notes"] == ["unknown values that the script read (a loss, a norm), assumed plausible: 2"]


def test_fully_sharded(tmp_path):
    """FSDP2: weights are gathered twice, gradients scattered once, and a rank holds its share of the states."""
    text = """
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    fully_shard(model[0])
    fully_shard(model[2])
    fully_shard(model)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    """
    result = play(tmp_path, MODEL + textwrap.dedent(text) + TRAIN, world=8)["result"]
    assert result["collectives"]["reduce_scatter"]["bytes"] == BYTES
    gathered = result["collectives"]["all_gather"]["bytes"]
    assert BYTES < gathered <= 2 * BYTES
    assert result["memory"]["optimizer states"] == pytest.approx(2 * BYTES / 8, rel=1e-2)


@pytest.mark.parametrize(("strategy", "gathers"), [("FULL_SHARD", 2), ("SHARD_GRAD_OP", 1)])
def test_flat_parameters(tmp_path, strategy, gathers):
    """FullyShardedDataParallel puts its shard in place of a flat parameter, and gives the memory of gathered ones back:
    what it holds is a share of the states, what it sends follows from when it gathers."""
    text = """
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    dist.init_process_group("nccl")
    how = dict(sharding_strategy=ShardingStrategy.STRATEGY, use_orig_params=True)
    model = FullyShardedDataParallel(nn.Sequential(*[FullyShardedDataParallel(one, **how) for one in model]), **how)
    optimizer = torch.optim.AdamW(model.parameters())
    """
    result = play(tmp_path, MODEL + textwrap.dedent(text).replace("STRATEGY", strategy) + TRAIN, world=8)["result"]
    assert result["collectives"]["all_gather"]["bytes"] == pytest.approx(gathers * BYTES, rel=1e-2)
    assert result["collectives"]["reduce_scatter"]["bytes"] == pytest.approx(BYTES, rel=1e-2)
    assert result["allocated_bytes"] < 3 * BYTES + (64 << 20)  # all weights, their gradients, a share of the states


def test_memory_figures(tmp_path):
    """What torch.cuda says is what is allocated; views share, and memory comes back with the last of them."""
    text = """
    import torch
    before = torch.cuda.memory_allocated()
    whole = torch.zeros(1024, 1024, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 << 20
    rows = list(whole.view(-1).chunk(4)) + [whole[1:], whole.t()]
    assert torch.cuda.memory_allocated() - before == 4 << 20
    del whole
    assert torch.cuda.memory_allocated() - before == 4 << 20
    del rows
    assert torch.cuda.memory_allocated() == before and torch.cuda.memory_reserved() == 20 << 20
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    total = torch.ones(8, device="cuda").sum() + torch.tensor(2.5, device="cuda")
    flag = torch.tensor(3, device="cuda") * 2
    assert flag.item() == 6 and float(torch.tensor(0.25).cuda() + 1) == 1.25
    real = torch.arange(5).float().mean()
    assert real.item() == 2.0 and type(real) is torch.Tensor
    pair = torch.tensor([1.0, 2.0], device="cuda")
    pair[0] = 5.0
    pair[1].add_(1.0)
    assert pair[0].item() == 5.0 and pair.zero_()[0].item() != 5.0
    here = torch.full((3,), 7.0)
    here.copy_(torch.randn(3, device="cuda"))
    assert here.tolist() == [1.0, 1.0, 1.0]
    order = torch.tensor([3, 1, 2])
    assert order.cuda().cpu().tolist() == [3, 1, 2]
    moved = torch.nn.Linear(8, 8)
    was = moved.weight
    for parameter in moved.parameters():
        parameter.data = parameter.data.cuda()
    assert moved.weight is was and was.is_cuda and isinstance(was, torch.nn.Parameter) and was.requires_grad
    moved(torch.ones(8, device="cuda")).sum().backward()
    assert was.grad.is_cuda
    was.data = torch.full((8, 8), 3.0)
    assert was.data[0, 0].item() == 3.0
    image = torch.randn(3, 224, 224)
    assert 0 <= image.numpy().min() < image.mul(2).numpy().max() <= 1 and len(torch.zeros(1 << 17).tolist()) == 1 << 17
    assert torch.nn.DataParallel(moved, device_ids=[0])(torch.ones(2, 8)).is_cuda
    buffer: torch.cuda.CUDAGraph | None = None
    shard = torch.nn.Parameter(torch.zeros(100, device="cuda"))
    with torch.no_grad():
        shard.set_(torch.zeros(10, device="cuda"))
    assert shard.shape == (10,) and shard.untyped_storage().nbytes() == 40
    assert shard[1:].data_ptr() - shard.data_ptr() == 4
    assert image[1:].data_ptr() - image.data_ptr() == 4 * 224 * 224 and image.data_ptr() != moved.weight.data_ptr()
    many = torch.randn(64, 64, device="cuda")
    torch.distributions.Categorical(logits=many).log_prob(torch.distributions.Categorical(logits=many).sample())
    assert torch.isfinite(many).all() and not many.isnan().any() and not torch.isnan(many.sum())
    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    with torch.inference_mode():
        assert not weight.expand(2, 4).is_inference() and weight.expand(2, 4).exp().is_inference()
    torch.optim.SGD([weight], 0.1).step()
    """
    assert "result" in play(tmp_path, text), (tmp_path / "out").read_text()


def test_made_up_values(tmp_path):
    """A script that draws or logs results reads plausible values, and half of the elements for a mask; its copies of a
    model are models."""
    text = """
    import copy, torch
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512))
    average = copy.deepcopy(model).cuda()
    model.cuda()
    assert isinstance(average[0].weight, torch.nn.Parameter) and average[0].weight.requires_grad
    assert not copy.deepcopy(model.requires_grad_(False))[0].weight.requires_grad
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        result = model(torch.randn(64, 512, device="cuda"))
        result.sum().backward()
        optimizer.step()
        picture = result.detach().cpu()
        assert (picture.numpy() == 1).all() and picture[0].tolist() == [1.0] * 512
        assert result.argmax(1).tolist() == [256] * 64
        mask = result > 0
        assert mask.nonzero().shape == (32 * 512, 2) and result[mask].shape == result.masked_select(mask).shape
        assert result[mask].shape == (32 * 512,) and result[mask.any(1)].shape == (32, 512)
        result.data[mask] = 0.0
    """
    notes = play(tmp_path, text)["result"]["notes"]
    assert notes == [
        "unknown values that the script read (a loss, a norm), assumed plausible: 6",
        "masks assumed to select half of the elements: 10",
    ]


def test_sequences_of_labels(tmp_path):
    """CTC, with lengths on the host and on the device: what backward needs are the paths of each batch."""
    text = """
    import torch
    net = torch.nn.Linear(64, 32).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        for where in ("cpu", "cuda"):
            scores = net(torch.randn(500, 16, 64, device="cuda")).log_softmax(-1)
            lengths = torch.full((16,), 500, device=where), torch.full((16,), 10, device=where)
            before = torch.cuda.memory_allocated()
            loss = torch.nn.functional.ctc_loss(scores, torch.ones(16, 10, dtype=torch.long, device="cuda"), *lengths)
            assert loss.shape == () and 4 * 16 * 500 * 21 <= torch.cuda.memory_allocated() - before < 4 * 16 * 500 * 22
            loss.backward()
        optimizer.step()
    """
    assert "result" in play(tmp_path, text), (tmp_path / "out").read_text()


def test_collectives_of_the_host(tmp_path):
    """Tensors with values meet those of ranks that have the same."""
    text = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    summed, largest, chunk = torch.tensor([3.0]), torch.tensor([3.0]), torch.zeros(2)
    dist.all_reduce(summed)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.reduce_scatter_tensor(chunk, torch.arange(32.0))
    gathered = [torch.zeros(1) for _ in range(16)]
    dist.all_gather(gathered, torch.tensor([5.0]))
    assert (summed.item(), largest.item(), chunk.tolist()) == (48.0, 3.0, [0.0, 16.0])
    assert [one.item() for one in gathered] == [5.0] * 16
    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    torch.optim.SGD([weight], 0.1).step()
    """
    assert "result" in play(tmp_path, text, world=16), (tmp_path / "out").read_text()


SPAWN = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, size):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:7001", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
count = COUNT
mp.spawn(main, args=(count,), nprocs=count)
"""


def test_spawned(tmp_path):
    """A script that starts its ranks itself."""
    result = play(tmp_path, SPAWN.replace("COUNT", "torch.cuda.device_count()"), world=4)["result"]
    assert result["collectives"]["all_reduce"]["bytes"] == 4 * 257 * 256
    assert "expected one for each of 4 GPUs" in play(tmp_path, SPAWN.replace("COUNT", "2"), world=4)["error"]


PROCESSES = """
def shout():
    print("a process of its own", flush=True)
if __name__ == "__main__":
    started = [context.Process(target=main, args=(rank, count)) for rank in range(count)]
    helper = context.Process(target=shout)
    for process in [*started[:1], helper, *started[1:]]:
        process.start()
    for process in [*started, helper]:
        process.join()
        assert process.exitcode == 0 and not process.is_alive()
"""


@pytest.mark.parametrize("context", ["mp", "mp.get_context('fork')"])
def test_a_process_for_each_rank(tmp_path, context):
    """That of this rank is played where it is started, those of other ranks nowhere; other processes run."""
    start = SPAWN.replace(
        "count = COUNT\nmp.spawn(main, args=(count,), nprocs=count)", f"count, context = 4, {context}"
    )
    text = start + PROCESSES + 'print("ended")\n'
    result = play(tmp_path, text, world=4)["result"]
    assert result["collectives"]["all_reduce"]["bytes"] == 4 * 257 * 256


REFUSED = {
    "out of memory": ("import torch\nrows = [torch.empty(1 << 30, device='cuda') for _ in range(99)]\n", "script.py:2"),
    "no program": (
        "import subprocess\nsubprocess.run('nvidia-smi -L', shell=True, check=True)\n"
        "assert subprocess.check_output(['nvidia-smi']) == b'GPU 0: NVIDIA H100 SXM5 80 GB (emulated)\\n'\n"
        "subprocess.run(['amd-smi'])\n",
        "No such file or directory: 'amd-smi'",
    ),
    "not on the host": ("import torch\ntorch.zeros(3).cuda().numpy()\n", "can't convert cuda:0 device type tensor"),
    "two devices": (
        "import torch\ntorch.zeros(3, device='cuda:1')\n",
        "a tensor on cuda:1, but several GPUs in one process",
    ),
    "a process": (
        "import torch, torch.multiprocessing as mp\n"
        "mp.get_context('spawn').Process(target=print, args=(torch.zeros(3, device='cuda'),)).start()\n",
        "processes that share a GPU can't be emulated",
    ),
    "colors": ("raise ValueError('\x1b[1mbold\x1b[0m')\n", "ValueError: bold"),
    "no step": ("import torch\ntorch.zeros(3, device='cuda')\n", "without an optimizer's step"),
    "no GPU": ("import torch\ntorch.zeros(3)\n", "put nothing on a GPU"),
    "its own error": ("import torch\nraise ValueError('as ever')\n", "ValueError: as ever"),
    "graphs": (
        "import torch\ntorch.zeros(3).cuda()\ngraph = torch.cuda.CUDAGraph()\n",
        "CUDA graphs can't be emulated",
    ),
    "code": (
        "import torch\nfrom torch.nn.attention.flex_attention import flex_attention\n"
        "flex_attention(*torch.zeros(3, 1, 2, 128, 64, device='cuda'))\n",
        "flex_attention without torch.compile materializes all scores",
    ),
    "attention": (
        "import torch\nq = torch.zeros(1, 2, 8, 64, device='cuda', dtype=torch.half)\n"
        "torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, None, False)\n",
        "no cost of this kernel of attention",
    ),
    "product": (
        "import torch\nleft = torch.zeros(8, 64, device='cuda', dtype=torch.half)\n"
        "torch.library.define('other::gemm_4bit', '(Tensor x) -> Tensor')\n"
        "torch.library.register_fake('other::gemm_4bit', lambda x: torch.empty_like(x))\n"
        "torch.ops.other.gemm_4bit(left)\n",
        "other.gemm_4bit.default can't be emulated: there is no cost of this matrix product",
    ),
    "package": (
        "import torch\ntorch.library.define('other::nms', '(Tensor boxes) -> Tensor')\n"
        "size = lambda boxes: boxes.new_empty(torch.library.get_ctx().new_dynamic_size())\n"
        "torch.library.register_fake('other::nms', size)\n"
        "torch.ops.other.nms(torch.zeros(9, 4, device='cuda'))\n",
        "other.nms.default can't be emulated: its result is as long as values say",
    ),
    "narrow": (
        "import torch\nleft, one = torch.zeros(64, 64, device='cuda').to(torch.float8_e5m2), torch.ones(1).cuda()\n"
        "torch._scaled_mm(left, left.t(), one, one)\n",
        "torch.float8_e5m2 products can't be emulated: NVIDIA A100",
    ),
    "calls": (
        "import torch.distributed.rpc as rpc\nrpc.init_rpc('worker', rank=0, world_size=2)\n",
        "torch.distributed.rpc can't be emulated: expected collectives",
    ),
    "factors": (
        "import torch\nweight = torch.nn.Parameter(torch.zeros(64, 64, device='cuda'))\n"
        "optimizer = torch.optim.SGD([weight], 0.1)\n"
        "for step in range(3):\n"
        "    torch.linalg.eigh(weight.detach()[:32, :32])\n"
        "    torch.linalg.eigh(weight.detach())\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n",
        "aten._linalg_eigh.default can't be emulated: there is no cost of factorizing or solving a matrix of 64 rows",
    ),
    "sparse": (
        "import torch\nwords = torch.nn.Embedding(100, 8, sparse=True, device='cuda')\n"
        "words(torch.ones(3, dtype=torch.long, device='cuda')).sum().backward()\n",
        "its result is a sparse tensor; expected dense ones",
    ),
    "lengths": ("import torch\ntorch.randn(3, device='cuda').unique()\n", "aten._unique2.default can't be emulated"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path, what):
    """One sentence for what can't be emulated, with the line of the script."""
    text, expected = REFUSED[what]
    outcome = play(tmp_path, text, **({"cluster": "a100-dgx"} if what == "narrow" else {}))
    assert "result" not in outcome
    assert expected in " ".join(str(outcome.get(key)) for key in ("full", "error", "where"))


def test_triton_kernel(tmp_path):
    """It is refused by its name, not by Triton's error about a driver; this Triton is only as deep as its launch."""
    runtime = tmp_path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (runtime / "jit.py").write_text(
        "class JITFunction:\n    def __init__(self, fn):\n        self.fn = fn\n"
        "    def run(self):\n        raise RuntimeError('0 active drivers')\n"
    )
    text = "from triton.runtime.jit import JITFunction as jit\n@jit\n@jit\ndef softmax():\n    pass\nsoftmax.run()\n"
    outcome = play(tmp_path, text)
    assert outcome["error"].startswith("Triton kernel softmax can't be emulated")


def test_time_and_activations_by_module(tmp_path):
    """Layers that are alike share a row; backward belongs to the module whose forward it is, a checkpoint included."""
    text = """
    import torch, torch.nn as nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.up, self.down, self.again = nn.Linear(1024, 4096), nn.Linear(4096, 1024), again

        def forward(self, x):
            return x + checkpoint(self.inner, x, use_reentrant=False) if self.again else x + self.inner(x)

        def inner(self, x):
            return self.down(torch.relu(self.up(x)))

    model = nn.Sequential(*[Block(again) for again in (False, False, True)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(9):
        model(torch.randn(16384, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    result = play(tmp_path, text)["result"]
    modules = result["modules"]
    assert set(modules) >= {"", "*", "*.up", "*.down"}
    # Three forward, three backward of two products each, and one forward again.
    assert modules["*.up"]["seconds"] == pytest.approx(modules["*.down"]["seconds"], rel=0.5)
    assert sum(one["activation_bytes"] for one in modules.values()) == result["memory"]["activations"]
    # What relu keeps of two blocks, and what the third computes again.
    assert modules["*"]["activation_bytes"] >= 2 * 16384 * 4096 * 4
