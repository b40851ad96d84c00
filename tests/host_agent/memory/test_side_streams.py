"""Compression of a GPU's tensors without a GPU: order of streams, use of memory, pinned copies
(support/cuda_model.py)."""

import pytest

torch = pytest.importorskip("torch")

from host_agent.memory import host, parts, saving, side_stream  # noqa: E402
from host_agent.memory.bounds import Fixed  # noqa: E402
from host_agent.memory.codecs import CODECS  # noqa: E402
from host_agent.memory.offload import OffloadedAdam  # noqa: E402
from host_agent.memory.operators import Operators, Rule  # noqa: E402
from host_agent.memory.saving import SavedTensors  # noqa: E402
from tests.support.cuda_model import GpuModel, GpuTensor  # noqa: E402

VALUES = [torch.randn(1500, generator=torch.Generator().manual_seed(k)).relu() + (k == 2) for k in range(5)]


@pytest.fixture(params=["side", "caller"])
def model(request, monkeypatch):
    made = GpuModel(request.param)
    made.install(monkeypatch)
    monkeypatch.setattr(saving, "PLAIN", (*saving.PLAIN, GpuTensor))
    monkeypatch.setattr(parts, "ON_DEVICE", 3072)
    return made


def saved(codec):
    hooks = SavedTensors(CODECS[codec](), 0, Fixed(0.001))
    hooks.operators.outside = Rule.LINEAR
    return hooks


def computed(model, values):
    """By a kernel that may still be to run."""
    x = model.tensor(values * 0.5)
    return x * 2


def restored(codec, tensors, pack=SavedTensors.pack):
    """All that went through the hooks, in the order of a backward pass. The tensors are gone meanwhile, and so is what
    was restored when the next is."""
    hooks = saved(codec)
    packed = [pack(hooks, tensors()) for tensors in tensors]
    hooks.forget()
    return [hooks.unpack(packed.pop()).clone().cpu() for _ in tensors][::-1], hooks.counters()


@pytest.mark.parametrize("in_flight", [0, pytest.param(1 << 30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("codec", ["int8", "fp16", "levels", "szx", "host"])
def test_restored_is_what_the_cpu_restores(model, codec, in_flight, monkeypatch):
    """Whatever stream is late, and however many vectors are under way."""
    monkeypatch.setattr(side_stream, "IN_FLIGHT_BYTES", in_flight)
    some = VALUES[:3]
    made = [lambda values=values: computed(model, values) for values in some]
    found, counters = restored(codec, made)
    wanted, _ = restored(codec, [lambda values=values: values.clone() for values in some])
    for there, here, values in zip(found, wanted, some, strict=True):
        assert torch.equal(there, here) or codec in ("levels", "szx")
        assert (there - values).abs().max() < 0.02
        assert torch.equal(there == 0, values == 0)
    assert counters.tensors == len(some) and counters.left_bytes == 0


@pytest.mark.parametrize("values", [torch.arange(3000) % 200, torch.arange(3000) * 11, torch.arange(3001) % 3 == 0])
def test_whole_numbers_and_bools(model, values):
    [found], counters = restored("int8", [lambda: model.tensor(values)])
    assert torch.equal(found, values) and found.dtype == values.dtype
    assert counters.compressed_bytes * 2 <= counters.bytes == values.nbytes


@pytest.mark.parametrize("codec", ["int8", "fp16", "levels", "szx"])
@pytest.mark.parametrize("rule", Rule)
def test_rules_of_operators(model, codec, rule, monkeypatch):
    """Values near 0 and 1 come back exactly where the operator is sensitive to them."""
    values = torch.randn(3000, generator=torch.Generator().manual_seed(9))
    values[:8] = torch.tensor([1e-30, -1e-5, 2.0**-10, 1, -1, 0.9999, 1.0001, 0])
    monkeypatch.setattr(Operators, "width", lambda self, rule, x: x.new_ones(1) if 0 < rule < 3 else None)

    def pack(hooks, tensor):
        hooks.operators.outside = rule
        return hooks.pack(tensor)

    [found], there = restored(codec, [lambda: computed(model, values)], pack)
    [wanted], here = restored(codec, [lambda: values.clone()], pack)
    assert there.tensors == here.tensors == (rule < Rule.PRECISE or rule == Rule.PRECISE and codec != "int8")
    assert torch.equal(found, wanted) or codec in ("levels", "szx")
    assert (found - values).abs().max() < 0.1
    assert rule < Rule.PRECISE or torch.equal(found[:8], values[:8])


@pytest.mark.parametrize("codec", ["int8", "fp16", "levels", "szx"])
def test_infinities_and_masks_stay(model, codec):
    """Kept apart, and the rest is as near as without them."""
    values = VALUES[0].clone()
    values[3] = -torch.inf
    values[::4] = -1e9
    [found], counters = restored(codec, [lambda: computed(model, values)])
    [wanted], _ = restored(codec, [lambda: values.clone()])
    assert torch.equal(found[::4], values[::4]) and found[3] == -torch.inf
    assert torch.equal(found, wanted) or codec in ("levels", "szx")
    assert (found - values).nan_to_num().abs().max() < 0.02
    assert counters.left_bytes == 0 and counters.compressed_bytes < values.nbytes * 0.8


def test_views_of_one_storage_are_compressed_once(model):
    hooks, x = saved("int8"), computed(model, VALUES[1])
    packed = [hooks.pack(x), hooks.pack(x)]
    del x
    for each in packed:
        assert ((hooks.unpack(each) * 1).cpu() - VALUES[1]).abs().max() < 0.02
    assert hooks.counters().tensors == 1


def test_a_change_in_place_meanwhile_is_noticed(model):
    hooks, x = saved("int8"), computed(model, VALUES[1])
    packed = hooks.pack(x)
    x.add_(1)
    del x
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hooks.unpack(packed)


def test_pinned_buffers_are_used_again_and_copies_come_ahead(model, monkeypatch):
    """Three passes over the same sizes take the buffers of one."""
    monkeypatch.setattr(host, "AHEAD_BYTES", 2 * VALUES[0].nbytes)
    codec, fetched = host.Host(), []
    fetch = host.OnHost._fetch
    monkeypatch.setattr(host.OnHost, "_fetch", lambda self: (fetched.append(id(self)), fetch(self))[1])
    hooks = SavedTensors(codec, 0, Fixed(0.001))
    for _ in range(3):
        packed = [hooks.pack(computed(model, values)) for values in VALUES]
        hooks.forget()
        hooks.counters()
        fetched.clear()
        first = hooks.unpack(packed.pop())
        assert len(fetched) == 3, "itself and two before it"
        assert torch.equal((first * 1).cpu(), VALUES[-1])
        del first
        for values in VALUES[-2::-1]:
            assert torch.equal((hooks.unpack(packed.pop()) * 1).cpu(), values)
    assert sum(map(len, codec._pinned.values())) == len(VALUES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_that_come_and_go_between_kernels(model, dtype):
    """OffloadedAdam's: eight pieces in three buffers, each late in its own way."""
    shapes, rng = [(20, 30), (50,), (7, 9)], torch.Generator().manual_seed(1)
    here = [torch.nn.Parameter(torch.randn(shape, generator=rng).to(dtype)) for shape in shapes]
    there = [torch.nn.Parameter(model.tensor(each.detach())) for each in here]
    optimizers = [OffloadedAdam(parameters, 1e-2, bucket=300) for parameters in (here, there)]
    for _ in range(3):
        for mine, theirs in zip(here, there, strict=True):
            gradient = torch.randn(mine.shape, generator=rng).to(dtype)
            mine.grad, theirs.grad = gradient * 0.5, model.tensor(gradient) * 0.5
        for optimizer in optimizers:
            optimizer.step()
    assert len(optimizers[1]._pieces) == 8 and all(isinstance(each, GpuTensor) for each in there)
    for mine, theirs in zip(here, there, strict=True):
        assert torch.equal(mine.detach(), theirs.detach().cpu())


def test_the_model_shows_memory_that_is_used_too_early(model):
    """Without `record_stream` the side stream reads what is not there any more."""
    seen = []
    for tells in (False, True):
        side, x = torch.cuda.Stream(), computed(model, VALUES[0])
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 1
        if tells:
            x.record_stream(side)
        del x
        torch.cuda.current_stream().synchronize()
        side.synchronize()
        seen.append(torch.equal(y.held, VALUES[0]))
    assert seen == [model.lazy != "side", True]
