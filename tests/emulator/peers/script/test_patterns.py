"""Patterns of other people's training scripts and of packages that they use."""

import json

import pytest

from tests.support.play import play

pytest.importorskip("torch")

TRAIN = """
import torch, torch.nn as nn
model = nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_parameters_made_by_their_type(tmp_path):
    """Accelerate replaces a parameter by one of the same type: on meta, of host values, or on the GPU."""
    text = """
    weight = nn.Linear(512, 512).weight
    on_meta = type(weight)(weight.to("meta"), requires_grad=weight.requires_grad, **vars(weight))
    assert on_meta.is_meta and type(on_meta) is nn.Parameter and on_meta.requires_grad
    here = type(weight)(torch.full((3,), 2.0), requires_grad=False)
    assert isinstance(here, nn.Parameter) and here.tolist() == [2.0] * 3 and not here.requires_grad
    there = type(model.weight)(model.weight.data * 2)
    assert there.is_cuda and isinstance(there, nn.Parameter) and there.requires_grad
    assert nn.Linear(512, 512).to("meta").to_empty(device="cuda").weight.is_cuda
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome


def test_generators(tmp_path):
    """Megatron keeps states of the GPU's generator and sets them again; generators of the host draw as they would."""
    text = """
    default, own, host = torch.cuda.default_generators[0], torch.Generator("cuda"), torch.Generator()
    default.set_state(torch.cuda.get_rng_state())
    assert default.device == own.manual_seed(3).device == torch.device("cuda:0") and host.device.type == "cpu"
    own.set_state(torch.arange(16, dtype=torch.uint8))
    assert own.get_state().tolist() == [*range(16)]
    assert torch.randn(4, generator=own, device="cuda").is_cuda
    state = host.manual_seed(1).get_state()
    drawn = torch.rand(3, generator=host)
    host.set_state(state)
    assert torch.equal(drawn, torch.rand(3, generator=host))
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome


def test_scalars_of_the_gpu_in_lists(tmp_path):
    """`torch.tensor` reads them; the result has their dtype."""
    text = """
    norms = [torch.randn(8, device="cuda").norm(), torch.tensor(3.0).cuda()]
    assert torch.tensor(norms).tolist() == [1.0, 3.0] and torch.tensor([norms, norms], device="cuda").is_cuda
    halves = torch.tensor((0.5, torch.tensor(2.0, dtype=torch.float64, device="cuda")))
    assert halves.dtype is torch.float64 and torch.as_tensor([norms[1]]).tolist() == [3.0]
    assert type(torch.tensor([1, 2])) is torch.Tensor
    with torch.device("cuda"):
        assert torch.tensor([]).is_cuda
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome
    assert "unknown values that the script read (a loss, a norm), assumed plausible: 3" in outcome["result"]["notes"]


def test_masks_set_at_sampled_places(tmp_path):
    """Detectors sample proposals: a mask has as many ones as places were set, and non-maximum suppression keeps half
    of the boxes."""
    text = """
    library = torch.library.Library("torchvision", "DEF")  # as torchvision defines it
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", lambda boxes, scores, threshold: scores.nonzero()[:, 0], "CPU")
    scores, boxes = torch.randn(1000, device="cuda"), torch.randn(1000, 4, device="cuda")
    positive = (scores > 0).nonzero().squeeze(1)
    drawn = positive[torch.randperm(500, device="cuda")[:100]]
    first, second = (torch.zeros_like(scores, dtype=torch.uint8) for _ in range(2))
    first[drawn], second[positive[:300]] = 1, 1
    sizes = {
        "uint8": first.nonzero(), "whole": torch.where(first | second)[0], "bool": scores[first.bool()],
        "others": scores[~first.bool()], "zeros": scores.masked_select(first == 0), "each": (first & second).nonzero(),
        "images": torch.where(torch.cat([first, second]))[0], "kept": torch.ops.torchvision.nms(boxes, scores, 0.5),
    }
    assert [len(one) for one in sizes.values()] == [100, 400, 100, 900, 900, 30, 400, 500], sizes
    assert torch.stack([first, second], out=torch.empty(2, 1000, dtype=torch.uint8, device="cuda")).shape == (2, 1000)
    first[scores > 0] = 1
    assert len(first.nonzero()) == 600
    first.bitwise_or_(scores > 0)
    assert len(first.nonzero()) == 500
    experts = torch.zeros(64, 10, dtype=torch.bool, device="cuda")
    experts.scatter_(1, torch.randn(64, 10, device="cuda").topk(3).indices, True)
    assert torch.randn(64, 10, 8, device="cuda")[experts].shape == (192, 8)
    there = torch.tensor([0.0, 0.0, 0.7]).cuda()
    assert torch.ops.torchvision.nms(torch.zeros(3, 4).cuda(), there, 0.5).tolist() == [2]
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome
    assert "masks assumed to select half of the elements: 3" in outcome["result"]["notes"]


def test_safetensors(tmp_path):
    """Weights have no memory to write from: a file of safetensors has zeros, and the values that are known."""
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "torch.py").write_text(
        "import torch\n_TYPES = {'F32': torch.float32, 'I64': torch.int64}\n"
        "def save_file(tensors, filename, metadata=None):\n    raise OSError('bad address')\n"
    )
    text = """
    from safetensors.torch import save_file
    tensors = {"weight": nn.Linear(512, 512).cuda().weight.cpu(), "step": torch.tensor([7]).cuda()}
    save_file(tensors, FILE, {"format": "pt"})
    """.replace("FILE", repr(str(tmp_path / "model.safetensors")))
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome
    data = (tmp_path / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert header["__metadata__"]["format"] == "pt" and begin % 8 == 0
    assert header["weight"] == {"dtype": "F32", "shape": [512, 512], "data_offsets": [0, 1 << 20]}
    assert header["step"] == {"dtype": "I64", "shape": [1], "data_offsets": [1 << 20, (1 << 20) + 8]}
    assert not any(data[begin:-8]) and int.from_bytes(data[-8:], "little") == 7


def test_masks_that_are_known(tmp_path):
    """Megatron sets the ids of other ranks' words to 0: elements that a known mask selects are set, and no others."""
    text = """
    words, rows = torch.tensor([5, 60, 7, 99, 1]).cuda(), torch.tensor([[0.0, 1.0], [2.0, 3.0]]).cuda()
    words[(words < 0) | (words >= 50)] = 0
    rows[:, torch.tensor([True, False]).cuda()] = 7.0
    rows[rows > 2.5] = 8.0
    assert words.tolist() == [5, 0, 7, 0, 1] and rows.tolist() == [[8.0, 1.0], [8.0, 8.0]]
    flags = torch.zeros(8, dtype=torch.int64).cuda()
    flags[torch.randn(8, device="cuda") > 0] = 1
    assert len(flags.nonzero()) == 4 and flags.tolist() == [1] * 8  # as of unknown values
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome


def test_nested_tensors(tmp_path):
    """Jagged ones of known lengths run as their values do."""
    text = """
    rows = [torch.randn(length, 512) for length in (30, 20, 50)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")
    assert model(nested).values().shape == (100, 512)
    parameters = torch.backends.cuda.SDPAParams(*[torch.randn(1, 2, 8, 64).cuda().half()] * 3, None, 0.0, True, False)
    assert torch.backends.cuda.can_use_flash_attention(parameters)
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome


def test_attributes_of_moved_parameters(tmp_path):
    """FullyShardedDataParallel marks its parameters, and moves their data to the host and back."""
    text = """
    kept = nn.Linear(64, 64).weight
    kept.marked = True
    kept.data = kept.data.cuda()
    assert kept.is_cuda and kept.marked and isinstance(kept, nn.Parameter)
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome


def test_resized(tmp_path):
    """Context parallelism shrinks a buffer to its shard, and restores it: within its storage, or in a larger one."""
    text = """
    whole, before = torch.randn(2, 64, 4, device="cuda"), torch.cuda.memory_allocated()
    for rows in (16, 64):
        assert whole.resize_(2, rows, 4) is whole and whole.shape == (2, rows, 4) and whole.stride() == (rows * 4, 4, 1)
        whole.copy_(torch.ones(2, rows, 4, device="cuda"))
    assert torch.cuda.memory_allocated() == before
    assert whole.resize_(4096).shape == (4096,) and torch.cuda.memory_allocated() == before + 4 * (4096 - 512)
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome


def test_frozen_weights(tmp_path):
    """They are weights, whether they are trained or not."""
    frozen = TRAIN.replace("step in", "_ in").replace("model(", "model(frozen(", 1)
    frozen = frozen.replace("optimizer = ", "frozen = nn.Linear(512, 512).cuda().requires_grad_(False)\noptimizer = ")
    result = play(tmp_path, frozen.replace('device="cuda"))', 'device="cuda")))'))["result"]
    assert result["memory"]["weights"] == pytest.approx(2 * 4 * 512 * 513, rel=0.01)


def test_ends_of_sequences(tmp_path):
    """Transformers generates until all sequences have the maximum length or an end, of which no value is known."""
    text = """
    unfinished = torch.ones(8, dtype=torch.long, device="cuda")
    for length in range(5):
        assert length < 4, "it never ends"
        ended = torch.randn(8, 9, device="cuda").argmax(1) == 1
        unfinished = unfinished & ~(torch.full((8,), length == 3, device="cuda") | ended)
        if unfinished.max() == 0:
            break
    ended |= torch.tensor([True] * 8).cuda()
    assert length == 3 and ended.tolist() == [True] * 8
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome


def test_lbfgs(tmp_path):
    """A step evaluates the loss as often as it may: losses that are not known do not count as converged."""
    text = """
    import torch
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure():
        calls.append(0)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 64, device="cuda")).square().mean()
        loss.backward()
        return loss

    for step in range(2):
        calls = []
        optimizer.step(closure)
        assert len(calls) == 5, len(calls)
    """
    outcome = play(tmp_path, text)
    assert "result" in outcome, outcome


def test_threads(tmp_path):
    """Transformers moves weights to the GPU in a pool of threads."""
    text = """
    from concurrent.futures import ThreadPoolExecutor
    before = torch.cuda.memory_allocated()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda rows: torch.full((128 * rows,), 2.0).to("cuda") * 3, range(1, 101)))
    assert torch.cuda.memory_allocated() - before == 512 * sum(range(1, 101))
    assert all(one.is_cuda and one[0].item() == 6.0 for one in made)
    """
    outcome = play(tmp_path, TRAIN.replace("for step", text.replace("\n    ", "\n") + "for step"))
    assert "result" in outcome, outcome
