"""Recurrent layers on GPUs that are not there, beside the products and states that their shapes imply."""

import pytest

from tests.support.play import play

pytest.importorskip("torch")

STEPS, BATCH, WIDTH, LAYERS = 8, 4096, 1024, 2
TEXT = f"""
import torch, torch.nn as nn
net = nn.KIND({WIDTH}, {WIDTH}, num_layers={LAYERS}, batch_first=True).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    x = torch.randn({BATCH}, {STEPS}, {WIDTH}, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        y, _ = net(x)
    assert y.shape == ({BATCH}, {STEPS}, {WIDTH}) and y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.shape == x.shape and all(one.grad.shape == one.shape for one in net.parameters())
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_products(tmp_path, kind, gates):
    """Large products run near the peak rate, and backward's are twice forward's."""
    result = play(tmp_path, TEXT.replace("KIND", kind))["result"]
    operations = 3 * 2 * LAYERS * STEPS * BATCH * gates * WIDTH * 2 * WIDTH
    seconds = result["parts"]["recurrent layers"]
    assert operations / 989e12 < seconds < 3 * operations / 989e12
    assert result["notes"] == []
    states = BATCH * STEPS * WIDTH * 2
    kept = result["modules"][kind]["activation_bytes"]
    assert kept > LAYERS * (gates + 1) * states
    assert kept < (LAYERS * (gates + 2) + 3) * states + (200 << 20)


def test_steps_are_one_operator(tmp_path):
    """A step takes two kernels, and the host far less than to launch two operators."""
    text = """
    import sys, torch, torch.nn as nn
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    net = nn.LSTM(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        net(torch.randn(steps, 16, 64, device="cuda"))[0].sum().backward()
        optimizer.step()
    """
    few, many = (play(tmp_path, text.replace("STEPS", str(steps)))["result"] for steps in (10, 110))
    assert few["operators"] == many["operators"]
    a_step_s = (many["parts"]["recurrent layers"] - few["parts"]["recurrent layers"]) / 100
    assert 4 * 1.5e-6 < a_step_s < 30e-6


def test_packed(tmp_path):
    """Sequences of different lengths: the result is as long as all together, and what is padded takes no time."""
    text = """
    import torch, torch.nn as nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, unpack_sequence
    net = nn.GRU(512, 512, bidirectional=True).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    lengths = torch.tensor([7, 9, 2])
    for _ in range(3):
        x = torch.randn(9, 3, 512, device="cuda", requires_grad=True)
        packed, last = net(pack_padded_sequence(x, lengths, enforce_sorted=False))
        assert packed.data.shape == (18, 1024) and last.shape == (2, 3, 512)
        assert packed.batch_sizes.tolist() == [3, 3, 2, 2, 2, 2, 2, 1, 1]
        padded, found = pad_packed_sequence(packed)
        assert padded.shape == (9, 3, 1024) and found.tolist() == [7, 9, 2]
        padded.sum().backward()
        assert x.grad.shape == x.shape
        optimizer.step()
    """
    assert "result" in play(tmp_path, text), (tmp_path / "out").read_text()
