"""What kernels of emulated scripts take that are neither torch's usual products nor bound by the GPU's memory."""

import pytest

from tests.support.play import play

pytest.importorskip("torch")


@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("waits", [True, False])
def test_copies_between_host_and_device(tmp_path, way, waits):
    """They take the time of the host's link, on their stream; the host waits unless they are asynchronous."""
    copy = {"there": "batch.to('cuda', non_blocking=FAST)", "back": "weight.data.to('cpu', non_blocking=FAST)"}[way]
    text = """
    import torch
    batch, weight = torch.zeros(1 << 28, dtype=torch.uint8), torch.nn.Parameter(torch.zeros(1 << 26, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step in range(3):
        weight.sum().backward()
        optimizer.step()
        torch.cuda.synchronize()
        start.record()
        COPY
        here = torch.cuda.Stream().record_event()  # at the host's time, as nothing precedes it on that stream
        end.record()
        assert 5.0 < start.elapsed_time(end) < 6.0 and (start.elapsed_time(here) > 5.0) is WAITS
    """
    text = text.replace("COPY", copy).replace("FAST", str(not waits)).replace("WAITS", str(waits))
    outcome = play(tmp_path, text)
    assert "result" in outcome, outcome
    parts = outcome["result"]["parts"]
    assert parts["copies between host and GPU"] == pytest.approx((1 << 28) / 50e9, rel=0.01)


def test_distances_without_products(tmp_path):
    """DETR's matcher: what torch does not compute by a GEMM takes the bytes of all pairs of rows."""
    text = """
    import torch
    boxes, others = torch.nn.Parameter(torch.zeros(4096, 64, device="cuda")), torch.zeros(4096, 64, device="cuda")
    optimizer = torch.optim.SGD([boxes], 0.1)
    for step in range(3):
        torch.cdist(boxes, others, p=1).sum().backward()
        optimizer.step()
    """
    outcome = play(tmp_path, text)
    assert "result" in outcome, outcome
    read = 2 * 4096 * 4096 * 128 * 4
    assert read / 3.35e12 < outcome["result"]["iteration_s"] < 2 * read / 3.35e12


def test_offloaded_weights(tmp_path):
    """Computing on the host takes no time; a note says so of an optimizer that does."""
    text = """
    import torch
    weight = torch.nn.Parameter(torch.zeros(1 << 20))
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(3):
        (weight.cuda() * 2).sum().backward()
        optimizer.step()
    """
    result = play(tmp_path, text)["result"]
    assert result["parts"]["copies between host and GPU"] == pytest.approx(2 * (4 << 20) / 50e9, rel=0.1)
    assert "optimizer steps on the host, whose computation takes no time here: 3" in result["notes"]


def test_products_in_eight_bits(tmp_path):
    """They take half the time of those in bfloat16, not that of their bytes."""
    text = """
    import torch
    narrow = torch.zeros(8192, 8192, device="cuda").to(DTYPE)
    weight, one = torch.nn.Parameter(torch.zeros(4, device="cuda")), torch.ones((), device="cuda")
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(3):
        PRODUCT
        weight.sum().backward()
        optimizer.step()
    """
    products = {
        "torch.bfloat16": "narrow @ narrow",
        "torch.float8_e4m3fn": "torch._scaled_mm(narrow, narrow.t(), one, one, out_dtype=torch.bfloat16)",
        "torch.int8": "torch._int_mm(narrow, narrow)",
    }
    seconds = []
    for dtype, product in products.items():
        parts = play(tmp_path, text.replace("DTYPE", dtype).replace("PRODUCT", product))["result"]["parts"]
        seconds.append(parts["matrix products"])
    assert seconds[1:] == pytest.approx([seconds[0] / 2] * 2, rel=0.05)


PRECISIONS = {
    "torch.set_float32_matmul_precision('high')": True,
    "torch.backends.cuda.matmul.allow_tf32 = True": True,
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": True,
    "torch.backends.fp32_precision = 'tf32'": True,
    "torch.backends.fp32_precision = 'ieee'": False,
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'": False,
}


@pytest.mark.parametrize("choice", PRECISIONS)
def test_tf32(tmp_path, choice):
    """A script chooses TF32 in torch's old way or in its new one."""
    text = """
    import torch
    CHOICE
    weight = torch.nn.Parameter(torch.zeros(4096, 4096, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(3):
        (weight @ weight).sum().backward()
        optimizer.step()
    """
    outcome = play(tmp_path, text.replace("CHOICE", choice))
    assert "result" in outcome, outcome
    seconds = 3 * 2 * 4096**3 / (495e12 if PRECISIONS[choice] else 67e12)
    assert outcome["result"]["parts"]["matrix products"] == pytest.approx(seconds, rel=0.5)


def test_operators_of_packages(tmp_path):
    """A note names operators that are not torch's."""
    text = """
    import torch
    torch.library.define("other::update", "(Tensor(a!) weight, Tensor grad) -> ()")
    torch.library.register_fake("other::update", lambda weight, grad: None)
    weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(3):
        weight.sum().backward()
        torch.ops.other.update(weight.detach(), weight.grad)
        optimizer.step()
    """
    assert "operators of packages, taken to be bound by memory: other.update" in play(tmp_path, text)["result"]["notes"]


def test_comparisons(tmp_path):
    """Known values are compared, others taken to be equal."""
    text = """
    import torch
    one, two, unknown = torch.ones(3, device="cuda"), torch.full((3,), 2.0).cuda(), torch.randn(3, device="cuda")
    assert torch.equal(one, two / 2) and not torch.equal(one, two) and torch.equal(one, unknown)
    assert torch.allclose(one, two, atol=1) and not torch.allclose(one, two) and torch.allclose(two, unknown)
    assert not torch.equal(one, unknown[1:])
    torch.optim.SGD([torch.nn.Parameter(one)], 0.1).step()
    """
    outcome = play(tmp_path, text)
    assert "result" in outcome, outcome


def test_quantized_weights(tmp_path):
    """A package's class of parameters keeps its class, its attributes and its memory; a product of four-bit weights
    takes the time of the product and of writing them in the input's dtype."""
    text = """
    import copy, torch

    class Packed(torch.nn.Parameter):
        def __new__(cls, data, is_packed=False):
            made = torch.Tensor._make_subclass(cls, data, False)
            made.is_packed = is_packed
            return made

        def to(self, *arguments, **options):
            if not self.is_packed:
                self.data, self.is_packed = torch.empty(self.numel() // 2, 1, dtype=torch.uint8, device="cuda"), True
            return self

    torch.library.define("bitsandbytes::gemm_4bit", "(Tensor left, Tensor right, int width) -> Tensor")
    fake = lambda left, right, width: left.new_empty(left.size(0), width)
    torch.library.register_fake("bitsandbytes::gemm_4bit", fake)
    layer = torch.nn.Linear(8192, 8192, bias=False)
    layer.weight = Packed(layer.weight.data)
    other = torch.nn.Linear(64, 64)
    before = torch.cuda.memory_allocated()
    torch.nn.Sequential(layer, other).to("cuda")
    assert isinstance(layer.weight, Packed) and isinstance(layer.weight, torch.nn.Parameter) and layer.weight.is_packed
    assert layer.weight.is_cuda and other.weight.is_cuda and list(dict(layer.named_parameters())) == ["weight"]
    assert 8192 * 8192 / 2 <= torch.cuda.memory_allocated() - before < 8192 * 8192 / 2 + (1 << 16)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    left = torch.zeros(4096, 8192, device="cuda", dtype=torch.bfloat16)
    for step in range(3):
        torch.ops.bitsandbytes.gemm_4bit(left, layer.weight, 8192)
        other(torch.zeros(64, 64, device="cuda")).sum().backward()
        optimizer.step()
    """
    outcome = play(tmp_path, text)
    assert "result" in outcome, outcome
    plain = 2 * 4096 * 8192 * 8192 / 989e12
    assert 1.05 * plain < outcome["result"]["parts"]["matrix products"] < 2 * plain


PACKED = """
import torch
from torch.nn.attention.varlen import varlen_attn
weight = torch.nn.Parameter(torch.zeros(512, 3 * 512, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], 0.1)
starts = torch.tensor([0, 6144, 8192], dtype=torch.int32).cuda()
for step in range(3):
    parts = (torch.randn(8192, 512, device="cuda", dtype=torch.bfloat16) @ weight).view(8192, 3, 4, 128).unbind(1)
    ATTEND
    out.sum().backward()
    optimizer.step()
"""
ONCE = "torch.nn.functional.scaled_dot_product_attention(*(one.transpose(0, 1)[None] for one in parts), is_causal=True)"
NESTED = "[torch.nested.nested_tensor_from_jagged(part, starts.long()).transpose(1, 2) for part in parts]"


def test_packed_sequences(tmp_path):
    """Attention over them computes the pairs within each, of known lengths or of equal ones."""

    def seconds(attend: str) -> tuple[float, list[str]]:
        outcome = play(tmp_path, PACKED.replace("ATTEND", f"out = {attend}"))
        assert "result" in outcome, outcome
        return outcome["result"]["parts"]["attention"], outcome["result"]["notes"]

    whole, notes = seconds(ONCE)
    packed, notes = seconds("varlen_attn(*parts, starts, starts, 6144, 6144, window_size=(-1, 0))")
    share = (6144**2 + 2048**2) / 8192**2
    assert share < packed / whole < 1.1 * share and not _lengths(notes)  # short rows are slower
    nested, notes = seconds(f"torch.nn.functional.scaled_dot_product_attention(*{NESTED}, is_causal=True).values()")
    assert nested == pytest.approx(packed, rel=0.001) and not _lengths(notes)
    unknown = "torch.randint(8192, (3,), device='cuda', dtype=torch.int32)"
    halves, notes = seconds(f"varlen_attn(*parts, {unknown}, {unknown}, 4096, 4096, window_size=(-1, 0))")
    assert halves == pytest.approx(whole / 2, rel=0.1) and _lengths(notes)
    windowed, _ = seconds("varlen_attn(*parts, starts, starts, 6144, 6144, window_size=(255, 0))")
    assert windowed < packed / 3


def test_attention_of_packages(tmp_path):
    """An operator of a package with FlashAttention's arguments takes as long as torch's."""
    text = """
    library = torch.library.Library("flash_attn", "DEF")
    rest = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, bool causal, {} -> Tensor"
    window = "int window_size_left, int window_size_right)"
    library.define("_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, " + rest.format(window))
    library.impl("_flash_attn_varlen_forward", lambda q, *_: torch.empty_like(q), "Meta")
    attend = torch.ops.flash_attn._flash_attn_varlen_forward
    """.replace("\n    ", "\n")
    run = PACKED.replace("optimizer =", text + "optimizer =")
    flash = "attend(*(one.detach() for one in parts), starts, starts, 6144, 6144, True, -1, -1)"
    torchs = "varlen_attn(*(one.detach() for one in parts), starts, starts, 6144, 6144, window_size=(-1, 0))"
    results = [play(tmp_path, run.replace("ATTEND", f"{one}; out = parts[0]"))["result"] for one in (flash, torchs)]
    seconds = [one["parts"]["attention"] for one in results]
    assert seconds[0] == pytest.approx(seconds[1]) and not any("packages" in one for one in results[0]["notes"])


def _lengths(notes: list[str]) -> bool:
    return any("unknown lengths" in note for note in notes)
