"""Matrix products of scripts whose operands have unaligned rows, beside the same with aligned ones."""

import pytest

from tests.support.play import play

pytest.importorskip("torch")

TEXT = """
import torch
import torch.nn as nn
x = torch.zeros(16384, 1024, device="cuda", dtype=DTYPE, requires_grad=True)
net = nn.Linear(1024, WIDTH, bias=False).to("cuda", DTYPE)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
COMPILE
for step in range(6):
    net(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HOPPER_TIMES = 3.5


@pytest.mark.parametrize(
    ("dtype", "compiled", "least", "most"),
    [
        # Of three products, two read the gradient of the unaligned result.
        ("torch.bfloat16", "", 0.9 * (1 + 2 * HOPPER_TIMES) / 3, (1 + 2 * HOPPER_TIMES) / 3),
        ("torch.bfloat16", "net = torch.compile(net)", 1.02, 1.5),  # it is copied to aligned rows
        ("torch.float32", "", 0.99, 1.01),  # such kernels need no alignment
    ],
)
def test_unaligned_rows(tmp_path, dtype, compiled, least, most):
    text = TEXT.replace("DTYPE", dtype).replace("COMPILE", compiled)
    odd, even = (play(tmp_path, text.replace("WIDTH", width))["result"]["parts"] for width in ("30001", "30008"))
    assert least < odd["matrix products"] / even["matrix products"] < most


def test_columns_of_a_wider_matrix(tmp_path):
    """A slice has the rows of the matrix that it is a part of."""
    text = """
    import torch
    weight = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for step in range(3):
        wide = torch.zeros(4096, WIDTH, device="cuda", dtype=torch.bfloat16)
        (wide[:, :4096] @ weight).sum().backward()
        optimizer.step()
    """
    odd, even = (play(tmp_path, text.replace("WIDTH", width))["result"]["parts"] for width in ("5001", "5000"))
    assert odd["matrix products"] > 2 * even["matrix products"]
