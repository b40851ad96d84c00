"""transformers' Trainer and Accelerate on a small GPT-2 and random tokens. Both use an existing process group, but only
know a fixed list of backends: so the group is initialized before they are created.

torchrun --nproc-per-node 2 scripts/examples/hugging_face.py --backend switchml
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def with_trainer(model: torch.nn.Module, data: list[dict], steps: int) -> list[float]:
    options = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    arguments = TrainingArguments("output", max_steps=steps, per_device_train_batch_size=4, **options)
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def with_accelerate(model: torch.nn.Module, data: list[dict], steps: int) -> list[float]:
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _, batch in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="switchml")
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)  # Before Trainer and Accelerator
    tokens = torch.randint(0, 100, (8 * arguments.steps, 16), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    for train in (with_trainer, with_accelerate):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=32))
        losses = train(model, data, arguments.steps)
        if dist.get_rank() == 0:
            print(f"{train.__name__}, {dist.get_backend()}: {' '.join(f'{loss:.4f}' for loss in losses)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
