"""Indices that a GPU chooses are evenly distributed: those of experts, and of tokens that are drawn."""

import pytest

from tests.support.play import play

pytest.importorskip("torch")

TRAIN = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""

EXPERTS = """
chosen = torch.topk(torch.randn(4096, 8, device="cuda"), 2)[1]
for expert in range(8):
    each = chosen == expert
    assert torch.where(each)[0].shape == (1024,) and each.any() and each.sum().item() == 1024
    assert torch.zeros(4096, 3, device="cuda")[each.any(-1)].shape == (1024, 3) and (chosen != expert).sum() == 7168
counted = torch.zeros(4096, 8, dtype=torch.int64, device="cuda").scatter_(1, chosen, 1)
assert counted.sum(0).tolist() == [1024] * 8 and set(counted.sum(1).tolist()) == {2}
ones = torch.nn.functional.one_hot(chosen, 8).permute(2, 1, 0)
assert len(torch.greater(ones.sum((-1, -2)), 0).nonzero()) == 8 and len(ones[3].nonzero()) == 1024
"""

TOKENS = """
scores, prompt = torch.randn(8, 50257, device="cuda"), torch.tensor([[1, 5]] * 8).cuda()
done = torch.zeros(8, dtype=torch.bool, device="cuda")
for token in (scores.argmax(-1), torch.multinomial(scores.softmax(-1), 1)[:, 0], scores.sort(-1)[1][:, 0]):
    done |= token == 1
    assert not (token == 1).all() and not (token == 2).any() and not done.all() and token[0].item() == 25128
beam, token = (best := torch.topk(scores.view(2, -1), 4)[1]) // 50257, best % 50257
assert not (token == 1).all() and (beam == 1).sum() == 2
assert not (torch.cat([prompt, token.view(8, 1)], 1) == 50256).any()
"""


@pytest.mark.parametrize("text", [EXPERTS, TOKENS])
def test_chosen(tmp_path, text):
    outcome = play(tmp_path, TRAIN.replace("for step", text + "for step"))
    assert "result" in outcome, outcome
    assert any("assumed even" in note for note in outcome["result"]["notes"])
