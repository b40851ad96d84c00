"""Vectors there and back: bounds, zeros, signs, odd values, dtypes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from host_agent.memory import device_bits, device_levels, device_szx, levels, parts, streams  # noqa: E402
from host_agent.memory.codecs import CODECS, narrowed  # noqa: E402
from host_agent.memory.side_stream import at_once  # noqa: E402

ODD = torch.tensor([0.0, -0.0, 1e-42, -1e-38, 3e38, -3e38, float("inf"), -float("inf"), float("nan"), 1.0, 1e30])


def vectors():
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(70_001, generator=generator)
    yield "dense", dense
    yield "relu", dense.relu()
    yield "offset", dense * 1e-3 + 5
    yield "odd", torch.cat([dense[:1000], ODD, dense[:99]])
    yield "zeros", torch.zeros(1000)
    yield "one", torch.tensor([-2.5])


@pytest.mark.parametrize("name", ["levels", "szx"])
@pytest.mark.parametrize("bound", [1e-6, 1e-2, 0.3, 10.0])
def test_bounds_zeros_and_signs_of_positive_tensors_hold(name, bound):
    for what, vector in vectors():
        compressed = at_once(CODECS[name]().compress(vector, bound))
        restored = compressed.restore()
        finite = vector.isfinite()
        error = (restored.double() - vector.double())[finite].abs().max()
        assert error <= bound, what
        assert torch.equal(restored[~finite], vector[~finite]) or what == "odd"
        assert torch.equal(restored.isnan(), vector.isnan()) and torch.equal(restored.isinf(), vector.isinf())
        assert torch.equal(restored == 0, vector == 0) or (name == "szx" and what != "relu"), what
        assert not restored[vector == 0].any(), what
        if name == "levels" or what == "relu":
            assert torch.equal(restored.sign().nan_to_num(), vector.sign().nan_to_num()), what


def test_levels_take_the_bits_that_a_block_needs():
    """By hand: numbers 1 to 4 of step 2 * bound are 2 bits less the least, a header is 3 bytes."""
    out = np.empty(levels.most_bytes(128), np.uint8)
    step = 2 * levels.MARGIN
    x = (np.arange(128, dtype=np.float32) % 4 + 0.5) * np.float32(step)
    assert levels.encode(x, 1.0, out) == 3 + 128 * 2 // 8
    assert out[:3].tolist() == [2, 1, 0]
    assert out[3] == (0 | 0 << 2 | 0 << 4 | 0 << 6) and out[4] == 0b01010101 and out[6] == 0b11111111
    restored = np.empty_like(x)
    assert levels.decode(out, 1.0, restored) == 35
    assert np.allclose(restored, x, rtol=1e-6)


def test_masks_of_dropout_are_exact():
    mask = torch.nn.functional.dropout(torch.ones(5000), 0.3)
    compressed = at_once(CODECS["levels"]().compress(mask, 0.05))
    assert torch.equal(compressed.restore(), mask)
    assert compressed.nbytes < mask.nbytes / 12


def test_chunks_are_shared_among_threads(monkeypatch):
    monkeypatch.setattr(streams, "CHUNK", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    vector = torch.randn(10_500)
    compressed = at_once(CODECS["szx"]().compress(vector, 0.01))
    assert len(compressed.ends) == 11
    assert (compressed.restore() - vector).abs().max() <= 0.01


@pytest.mark.parametrize("name", ["levels", "szx", "fp16", "int8", "host"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_codec_gives_the_dtype_back(name, dtype):
    vector = torch.randn(1001).to(dtype)
    compressed = at_once(CODECS[name]().compress(vector, 0.01))
    if name == "fp16" and dtype.itemsize == 2:
        assert compressed is None, "no smaller"
        return
    restored = compressed.restore()
    assert restored.dtype == dtype and restored.shape == vector.shape
    assert (restored.float() - vector.float()).abs().max() < 0.03


def test_half_precision_and_int8_take_what_they_can_hold():
    vector = torch.tensor([1e6, -1e6, float("inf"), 1.0])
    assert at_once(CODECS["fp16"]().compress(vector, 0)) is None
    assert at_once(CODECS["int8"]().compress(vector, 0)) is None
    assert at_once(CODECS["int8"]().compress(torch.zeros(300), 0)).restore().tolist() == [0.0] * 300


@pytest.mark.parametrize(
    "least, most, dtype, size", [(0, 63, torch.int64, 1), (-9, 300, torch.int64, 2), (0, 1, torch.bool, 1 / 8)]
)
def test_whole_numbers_are_exact_and_narrow(least, most, dtype, size):
    vector = torch.randint(least, most + 1, (1000,)).to(dtype)
    compressed = at_once(narrowed(vector))
    assert torch.equal(compressed.restore(), vector) and compressed.restore().dtype == dtype
    assert compressed.nbytes == 1000 * size
    assert at_once(narrowed(torch.tensor([0, 1 << 40]))) is None


def test_the_host_file_is_empty_again_when_nothing_is_left(tmp_path):
    host = CODECS["host"](str(tmp_path))
    one, two = at_once(host.compress(torch.arange(5.0), 0)), at_once(host.compress(torch.arange(3000.0), 0))
    assert two.restore()[-1] == 2999 and one.restore().tolist() == [0, 1, 2, 3, 4]
    assert not list(tmp_path.iterdir()), "the file has no name"
    del one, two
    three = at_once(host.compress(torch.ones(2), 0))
    assert three.restore().tolist() == [1, 1]


ON_DEVICE = {"levels": device_levels.compress, "szx": device_szx.compress}


@pytest.mark.parametrize("name", ON_DEVICE)
@pytest.mark.parametrize("bound", [1e-6, 1e-2, 0.3, 10.0])
def test_operators_of_a_device_restore_what_the_loops_of_the_cpu_do(name, bound, monkeypatch):
    """The same values, bit for bit, in about as many bytes, in parts of a vector as well. SZx's depend on where parts
    begin."""
    for part, length in (1 << 18, None), (1024, 5000):
        monkeypatch.setattr(parts, "ON_CPU", part)
        monkeypatch.setattr(streams, "CHUNK", part // 4 if name == "szx" else part)
        for what, whole in vectors():
            vector = whole[:length]
            there, here = at_once(ON_DEVICE[name](vector, bound)), at_once(CODECS[name]().compress(vector, bound))
            found, wanted = there.restore(), here.restore()
            assert torch.equal(found.nan_to_num(5), wanted.nan_to_num(5)), what
            assert torch.equal(found.isnan(), wanted.isnan())
            assert there.nbytes <= here.nbytes * 1.02 + 600 * -(-len(vector) // part), what


def test_masks_of_dropout_are_exact_on_a_device():
    mask = torch.nn.functional.dropout(torch.ones(5000), 0.3).bfloat16()
    compressed = at_once(device_levels.compress(mask, 0.05))
    assert torch.equal(compressed.restore(), mask) and compressed.restore().dtype == torch.bfloat16


@pytest.mark.parametrize("count", [0, 1, 8, 1003])
def test_bits_of_a_device_are_those_of_numpy(count):
    mask = torch.rand(count) < 0.4
    packed = device_bits.packed(mask)
    assert packed.tolist() == np.packbits(mask.numpy()).tolist()
    assert torch.equal(device_bits.unpacked(packed, count), mask)
    assert torch.equal(device_bits.places(mask, int(mask.sum())), mask.nonzero()[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_is_within_half_a_step_and_keeps_zeros_and_signs(dtype, monkeypatch):
    monkeypatch.setattr(parts, "ON_CPU", 2560)
    vector = (torch.randn(30_001, generator=torch.Generator().manual_seed(1)) * torch.logspace(-7, 4, 30_001)).to(dtype)
    vector[::7] = 0
    found = at_once(CODECS["int8"]().compress(vector, 0)).restore()
    rows = torch.nn.functional.pad(vector.float(), (0, -len(vector) % 256)).view(-1, 256)
    step = (rows.abs().amax(1, keepdim=True) / 126.9).expand_as(rows).reshape(-1)[: len(vector)]
    rounding = torch.finfo(dtype).eps * vector.float().abs() + torch.finfo(dtype).smallest_normal
    assert ((found.float() - vector.float()).abs() <= 0.501 * step + rounding).all()
    assert torch.equal(found.sign(), vector.sign()) or dtype == torch.float16
    assert torch.equal(found == 0, vector == 0) or dtype == torch.float16
