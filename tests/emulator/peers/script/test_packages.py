"""Trainings of other people's packages, unmodified, on a GPU that is not there."""

import textwrap

import pytest

from tests.support.play import play

pytest.importorskip("transformers")

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
