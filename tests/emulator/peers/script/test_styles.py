"""Styles in which people write scripts, each with what follows from shapes, or from values that are known."""

import textwrap

import pytest

from tests.support.play import play

pytest.importorskip("torch")

STEP = """
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
torch.optim.SGD([weight], 0.1).step()
"""


def test_values_that_are_known(tmp_path):
    """What is worked out of data that came from the host keeps its values, through operators and collectives."""
    text = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    labels = torch.tensor([3, 1, 2, 1]).cuda()
    pair = torch.tensor([1.0, 2.0]).cuda()
    pair[0] = 5.0
    assert pair.cpu().tolist() == [5.0, 2.0] and f"{pair.sum():.1f}" == "7.0" and pair[1:].tolist() == [2.0]
    assert (labels == 1).sum().item() == 2 and labels[labels == 1].shape == (2,)
    assert torch.bincount(labels, minlength=4).tolist() == [0, 2, 1, 1]
    assert (labels == 1).nonzero().tolist() == [[1], [3]] and torch.unique(labels).tolist() == [1, 2, 3]
    tokens = torch.randn(10, 4, device="cuda").argmax(1)
    counts = torch.bincount(tokens, minlength=4)
    assert counts.tolist() == [3, 3, 2, 2]
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    assert got.tolist() == [3, 3, 2, 2]  # a rank that does not run sends what it is sent
    dist.all_reduce(labels)
    assert labels.tolist() == [12, 4, 8, 4]
    objects = [None] * 4
    dist.all_gather_object(objects, {"loss": 2})
    assert objects == [{"loss": 2}] * 4
    turned = torch.randn(2, 3, device="cuda")
    assert turned.transpose_(0, 1) is turned and turned.shape == (3, 2) and turned.stride() == (1, 3)
    assert turned.unsqueeze_(0).shape == (1, 3, 2)
    """
    result = play(tmp_path, textwrap.dedent(text) + STEP, world=4).get("result")
    assert result, (tmp_path / "out").read_text()
    assert "counts (tokens of experts, classes) assumed even: 1" in result["notes"]


@pytest.mark.slow
def test_inference_mode(tmp_path):
    """Torch hands over whole operators there; they take what they do elsewhere."""
    text = """
    import sys, torch, torch.nn as nn, torch.nn.functional as F
    net = nn.Sequential(nn.Linear(4096, 4096), nn.LayerNorm(4096), nn.Linear(4096, 4096)).cuda()
    weight = nn.Parameter(torch.zeros(4, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(9):
        with torch.MODE():
            query = net(torch.randn(4096, 4096, device="cuda")).view(4, 1024, 32, 128).transpose(1, 2).bfloat16()
            out = F.scaled_dot_product_attention(query, query, query, is_causal=True)
            F.cross_entropy(out.reshape(-1, 128).float(), torch.zeros(131072, dtype=torch.int64, device="cuda")).item()
        optimizer.step()
    """
    one, other = (
        play(tmp_path, text.replace("MODE", mode), cluster="h100-dgx")["result"]
        for mode in ("no_grad", "inference_mode")
    )
    assert one["parts"].keys() == other["parts"].keys() >= {"attention", "matrix products"}
    assert other["parts"] == pytest.approx(one["parts"], rel=1e-6)
    assert other["allocated_bytes"] == one["allocated_bytes"]


@pytest.mark.slow
def test_recurrent_layers(tmp_path):
    """LSTM and GRU, stacked and in both directions, are kernels of their own."""
    text = """
    import torch, torch.nn as nn
    lstm = nn.LSTM(64, 128, 2, batch_first=True).cuda()
    gru = nn.GRU(128, 32, batch_first=True, bidirectional=True).cuda()
    optimizer = torch.optim.RMSprop([*lstm.parameters(), *gru.parameters()])
    for step in range(9):
        out = gru(lstm(torch.randn(8, 16, 64, device="cuda"))[0])[0]
        assert out.shape == (8, 16, 64)
        out.square().mean().backward()
        assert lstm.weight_ih_l0.grad.shape == (512, 64)
        optimizer.step()
        optimizer.zero_grad()
    """
    result = play(tmp_path, text)["result"]
    assert result["parts"]["recurrent layers"] > 0
    assert result["memory"]["weights"] == result["memory"]["optimizer states"]


@pytest.mark.slow
def test_synchronized_batch_norm(tmp_path):
    """Statistics of all ranks are gathered forward, sums are reduced backward."""
    text = """
    import torch, torch.nn as nn, torch.distributed as dist
    dist.init_process_group("nccl")
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32))).cuda()
    net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(9):
        images = torch.randn(16, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
        net(images).square().mean().backward()
        optimizer.step()
    """
    result = play(tmp_path, text, world=4)["result"]
    assert result["collectives"]["all_gather"]["bytes"] == 4 * (2 * 32 + 1) * 4
    assert result["collectives"]["all_reduce"]["bytes"] == 2 * 32 * 4
    assert result["parts"]["normalization"] > 0


@pytest.mark.slow
def test_expandable_segments(tmp_path, monkeypatch):
    """As PyTorch is told by its environment variable: 30 MiB are two pages of 20, not a segment of their own."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512, expandable_segments:True")
    text = """
    import torch
    block = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == 40 << 20
    """
    assert "result" in play(tmp_path, textwrap.dedent(text) + STEP), (tmp_path / "out").read_text()


def test_gathered_values(tmp_path):
    """A metric that is known is gathered with its value, from tensors of any size or type."""
    text = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    weight = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(4):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for count in (1, 3, 1 << 13):
                given = torch.full((count,), 7, dtype=dtype, device="cuda")
                out = torch.empty(4 * count, dtype=dtype, device="cuda")
                dist.all_gather_into_tensor(out, given)
                assert out[0].item() == out[-1].item() == (7 if dtype == torch.int64 or count < 1 << 12 else 1)
                dist.reduce_scatter_tensor(given, out)
        weight.square().sum().backward()
        optimizer.step()
    """
    assert "result" in play(tmp_path, text, world=4)


def test_weight_norm(tmp_path):
    """A module that keeps a weight computed from its parameters can be moved, and an earlier optimizer trains it."""
    text = """
    import torch
    model = torch.nn.utils.weight_norm(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert model.cuda().weight_g.is_cuda and all(one.is_cuda for one in optimizer.param_groups[0]["params"])
    for step in range(4):
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        assert model.weight_v.grad is not None
        optimizer.step()
    """
    assert "result" in play(tmp_path, text)


BACKENDS = """
import torch, torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
layer = torch.nn.Linear(64, 64).cuda().to(DTYPE)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(9):
    query = layer(torch.zeros(2, 8, 1024, 64, device="cuda", dtype=DTYPE))
    with sdpa_kernel(SDPBackend.BACKEND):
        F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    optimizer.step()
"""


def test_backends_of_attention(tmp_path):
    """cuDNN's kernels cost what FlashAttention costs; plain operators are used only where the script allows them."""

    def played(backend, dtype="torch.bfloat16"):
        return play(tmp_path, BACKENDS.replace("BACKEND", backend).replace("DTYPE", dtype))

    flash = played("FLASH_ATTENTION")["result"]["parts"]
    assert played("CUDNN_ATTENTION")["result"]["parts"] == pytest.approx(flash)
    assert "attention" in flash and "attention" not in played("MATH")["result"]["parts"]
    assert "No available kernel" in played("FLASH_ATTENTION", "torch.float32")["error"]
