"""Trainings of other people's packages, unmodified, on a GPU that is not there."""

import textwrap

import pytest

from tests.support.play import play

pytest.importorskip("torch")

SMALL = "hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128"
MODELS = {
    "GPT2LMHeadModel": "GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=1000)",
    "LlamaForCausalLM": f"LlamaConfig({SMALL}, num_key_value_heads=2, vocab_size=1000)",
    "BertForMaskedLM": f"BertConfig({SMALL}, vocab_size=1000)",
    "MixtralForCausalLM": f"MixtralConfig({SMALL}, num_key_value_heads=2, num_local_experts=4, vocab_size=1000)",
    "ViTForImageClassification": f"ViTConfig({SMALL}, num_labels=10)",
}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_trainer(tmp_path, model):
    """Trainer with DDP and bf16: every parameter's gradient is reduced once."""
    pytest.importorskip("transformers")
    text = f"""
    import torch, transformers
    from transformers import Trainer, TrainingArguments
    model = transformers.{model}(transformers.{MODELS[model]})

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, place):
            if {model.startswith("ViT")}:
                return {{"pixel_values": torch.randn(3, 224, 224), "labels": torch.tensor(place % 10)}}
            words = torch.randint(1000, (128,))
            return {{"input_ids": words, "labels": words}}

    settings = TrainingArguments({str(tmp_path)!r}, max_steps=10, bf16=True, report_to=[], save_strategy="no")
    Trainer(model, settings, train_dataset=Data()).train()
    """
    result = play(tmp_path, textwrap.dedent(text), world=8)["result"]
    parameters = result["memory"]["weights"]
    assert result["collectives"]["all_reduce"]["bytes"] == pytest.approx(parameters, rel=0.1)


DATA = """
import torch, torch.nn as nn
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 64)), batch_size=8)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
"""
BYTES = 4 * (2 * 64 * 256 + 256 + 64)


PACKAGES = {
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="bf16")
net, optimizer, data = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), data)
for (batch,) in data:
    loss = net(batch).square().mean()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "lightning": """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

options = dict(logger=False, enable_checkpointing=False, precision="bf16-mixed", max_epochs=1)
lightning.Trainer(accelerator="gpu", devices=8, num_nodes=2, strategy="ddp", **options).fit(Module(), data)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_gradient_is_reduced_once(tmp_path, package):
    pytest.importorskip(package)
    result = play(tmp_path, DATA + PACKAGES[package], world=16)["result"]
    assert result["collectives"]["all_reduce"]["bytes"] == pytest.approx(BYTES, rel=0.01)


@pytest.mark.slow
def test_sharded_states_and_distributed_checkpoints(tmp_path):
    """ZeroRedundancyOptimizer broadcasts what each rank has stepped; checkpoints are left out, and said so."""
    text = """
    import torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.optim import ZeroRedundancyOptimizer
    dist.init_process_group("nccl")
    net = nn.parallel.DistributedDataParallel(net.cuda())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.AdamW)
    for (batch,) in data:
        net(batch.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        dcp.save({"net": net.state_dict()}, checkpoint_id="nowhere")
        dcp.state_dict_saver.async_save({"net": net.state_dict()}, checkpoint_id="nowhere").result()
    """
    result = play(tmp_path, DATA + textwrap.dedent(text), world=4)["result"]
    assert result["collectives"]["broadcast"]["bytes"] == pytest.approx(BYTES, rel=0.01)
    assert "distributed checkpoints neither written nor read: 4" in result["notes"]
