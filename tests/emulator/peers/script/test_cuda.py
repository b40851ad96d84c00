"""What torch.cuda says to a script, beyond memory."""

import pytest

from tests.support.play import play

pytest.importorskip("torch")

STEPS = """
weight = torch.nn.Parameter(torch.zeros(8, device="cuda"))
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(3):
    weight.sum().backward()
    optimizer.step()
"""


def test_old_names_of_dtypes(tmp_path):
    """torch.cuda.FloatTensor creates, converts, is a class of tensors, and a default."""
    text = """
    import numpy, torch
    def scripted(x): return x + torch.tensor(1.0)
    Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
    assert Tensor(3, 1).fill_(1.0).shape == (3, 1) and Tensor([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert Tensor(numpy.ones((2, 3))).dtype is torch.float32 and torch.cuda.LongTensor([[1]]).dtype is torch.int64
    assert torch.ones(3).type(Tensor).is_cuda and torch.ones(3).type("torch.cuda.HalfTensor").dtype is torch.half
    assert torch.ones(3).type(torch.float64).type() == "torch.DoubleTensor"
    assert isinstance(Tensor(3), Tensor) and not isinstance(torch.ones(3), Tensor)
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert torch.ones(3).is_cuda
    torch.set_default_device(None)
    assert torch.tensor([1, 2], pin_memory=True).to("cuda", non_blocking=True).tolist() == [1, 2]
    assert torch.jit.script(scripted)(torch.ones(2)).tolist() == [2.0, 2.0]
    """
    outcome = play(tmp_path, "\n".join(line.strip() for line in text.splitlines()) + STEPS)
    assert "result" in outcome, outcome


def test_tools(tmp_path):
    """Calls of profilers, debuggers and monitors, which a build of torch for CPUs lacks, change nothing."""
    text = """
import torch
torch.cuda.profiler.start()
torch.cuda.cudart().cudaProfilerStop()
with torch.cuda.nvtx.range("step"):
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("part"))
torch.cuda.memory._record_memory_history(max_entries=100)
torch.cuda.memory._dump_snapshot("snapshot.pickle")
torch.cuda.set_sync_debug_mode("warn")
torch.cuda.random.set_rng_state(torch.cuda.random.get_rng_state())
assert torch.cuda.utilization() == 100 and torch.cuda.power_draw() == 700000
assert torch.cuda.memory_stats()["inactive_split_bytes.all.peak"] == 0
assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == torch.cuda.memory.max_memory_allocated()
assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()
assert torch.cuda.get_per_process_memory_fraction() == 1.0
with torch.cuda.stream(None), torch.cuda.stream(torch.cuda.ExternalStream(0)):
    pass
"""
    outcome = play(tmp_path, text + STEPS)
    assert "result" in outcome, outcome
    assert "snapshots of memory are not emulated" in (tmp_path / "out").read_text()


def test_pools_are_refused(tmp_path):
    text = "import torch\ntorch.zeros(3, device='cuda')\ntorch.cuda.MemPool()\n"
    assert play(tmp_path, text)["error"].startswith("a memory pool or an allocator of the script can't be emulated")


@pytest.mark.parametrize("share", ["weight.__cuda_array_interface__", "torch.from_dlpack(weight)"])
def test_other_libraries(tmp_path, share):
    """Kernels of Numba and CuPy, which would read memory that does not exist, are refused."""
    text = f"import torch\nassert torch.from_dlpack(torch.zeros(1 << 17)).shape == (1 << 17,)\n{STEPS}\n{share}\n"
    outcome = play(tmp_path, text.replace("step()", f"step()\n    {share}").replace("[weight]", "[weight]"))
    assert "given to another library" in outcome["error"], outcome
