"""`flex_attention` in compiled code: its time by the share of blocks that masks compute."""

import pytest

from tests.support.play import play

pytest.importorskip("torch")

LENGTH, BLOCK = 4096, 128
ROWS = LENGTH // BLOCK
SCRIPT = """
import torch
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, flex_attention
attend = torch.compile(flex_attention)
LENGTH = 4096
documents = (torch.arange(LENGTH) // 1024).cuda()

def causal(b, h, q, k):
    return q >= k

def near(b, h, q, k):
    return q - k < 512

def same(b, h, q, k):
    return documents[q] == documents[k]

def of(values):
    return lambda b, h, q, k: values[q] >= values[k]

def masked(function):
    return create_block_mask(function, None, None, LENGTH, LENGTH, device="cuda")

def first_blocks(count):
    rows = LENGTH // 128
    counts = torch.full((1, 1, rows), count, dtype=torch.int32, device="cuda")
    indices = torch.arange(rows, dtype=torch.int32, device="cuda").expand(1, 1, rows, rows)
    return BlockMask.from_kv_blocks(counts, indices)

mask = MASK
layer = torch.nn.Linear(1024, 3072, bias=False).cuda().bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(9):
    x = torch.zeros(2, LENGTH, 1024, device="cuda", dtype=torch.bfloat16)
    query, key, value = (one.view(2, LENGTH, -1, 64).transpose(1, 2) for one in layer(x).chunk(3, -1))
    key, value = key[:, ::GROUPS], value[:, ::GROUPS]
    out = attend(query, key, value, block_mask=mask, enable_gqa=GROUPS > 1)
    assert out.transpose(1, 2).is_contiguous(), "not in the order of the query's dimensions"
    out.square().mean().backward()
    optimizer.step()
"""


def _attention_s(tmp_path, mask, notes=(), groups=1):
    outcome = play(tmp_path, SCRIPT.replace("MASK", mask).replace("GROUPS", str(groups)))
    assert "result" in outcome, outcome
    assert [one for one in outcome["result"]["notes"] if "mask" in one] == list(notes)
    return outcome["result"]["parts"]["attention"]


CAUSAL = (ROWS + 1) / 2 / ROWS
SHARES = {
    "masked(causal)": CAUSAL,
    "masked(and_masks(causal, near))": (5 * ROWS - 10) / ROWS**2,
    "masked(and_masks(causal, same))": CAUSAL / 4 + (1 - 1 / 4) / 2 / ROWS,
    "masked(of(torch.arange(LENGTH, device='cuda')))": CAUSAL,
    "first_blocks(8)": 8 / ROWS,
}


def test_time_by_blocks(tmp_path):
    """Documents, windows and hand-made masks: what is computed follows from the values that the mask depends on."""
    whole = _attention_s(tmp_path, "None")
    work = 4 * 2 * 16 * LENGTH**2 * 64
    peak = 989.4e12
    expected = work / peak / 0.30 * (1 + 70 / LENGTH) + 2.5 * work / peak / 0.23 * (1 + 230 / LENGTH)
    assert whole == pytest.approx(expected, rel=0.01)
    for mask, share in SHARES.items():
        assert _attention_s(tmp_path, mask) == pytest.approx(share * whole, rel=0.03), mask
    note = "masks assumed to select half of the elements: 1"
    unknown = "masked(of(torch.randn(LENGTH, device='cuda')))"
    assert _attention_s(tmp_path, unknown, [note]) == pytest.approx(whole / 2, rel=0.01)
    assert _attention_s(tmp_path, "None", groups=4) == pytest.approx(whole, rel=1e-6)


REFUSED = {
    "uncompiled": ("attend = torch.compile(flex_attention)", "attend = flex_attention", "without torch.compile"),
    "learned": (
        "block_mask=mask",
        "score_mod=lambda score, *_: score + layer.weight[0, 0]",
        "with a score_mod that has weights to learn",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path, what):
    """What has no cost is not guessed."""
    before, after, expected = REFUSED[what]
    outcome = play(tmp_path, SCRIPT.replace("MASK", "None").replace("GROUPS", "1").replace(before, after))
    assert "result" not in outcome
    assert expected in outcome["error"]
