"""Peak tensor memory of torch in a training step of small models on this machine's CPU, compared with the emulator's
prediction."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emulator.jobs.workload import memory
from emulator.jobs.workload.job import Job
from emulator.jobs.workload.models import LayerTable, Transformer
from emulator.lab.validation.rows import Row

MIB = 2.0**20
STEPS = 2
"""Training steps: the first creates the optimizer's states; the second is measured."""
SIDE = 32
"""Height and width of the images."""


@dataclass(frozen=True)
class Case:
    """One model and its training options."""

    model: Transformer | None
    """None: the convolutional network."""
    precision: str
    optimizer: str
    recompute: str
    micro_batch: int

    @property
    def name(self) -> str:
        model = self.model
        what = f"GPT of {model.layers} x {model.hidden}, {model.sequence} tokens" if model else "CNN"
        how = "" if self.recompute == "none" else f", recompute {self.recompute}"
        return f"{what}, batch {self.micro_batch}, {self.precision}, {self.optimizer}{how}"

    @property
    def job(self) -> Job:
        return Job(
            gpus=1,
            micro_batch=self.micro_batch,
            precision=self.precision,
            optimizer=self.optimizer,
            recompute=self.recompute,
            # The optimizer of modules.py, which updates weights with master copies one by one.
            implementation="composer" if self.precision == "bf16" else "torch",
            cross_entropy="eager",
        )


def gpt(layers: int, hidden: int, sequence: int, vocabulary: int) -> Transformer:
    """A GPT-2-like model."""
    return Transformer(
        name="gpt",
        title="a small GPT",
        source="emulator/lab/validation/memory/modules.py",
        layers=layers,
        hidden=hidden,
        heads=4,
        vocabulary=vocabulary,
        sequence=sequence,
        attention="flash",
    )


def cases() -> Iterator[Case]:
    """Deep and wide models, large and small vocabularies; each optimizer and precision, with and
    without checkpointing."""
    deep, wide = gpt(6, 128, 128, 512), gpt(2, 128, 64, 8192)
    for precision in ("fp32", "bf16"):
        for optimizer in ("adam", "sgd"):
            for recompute in ("none", "full"):
                yield Case(deep, precision, optimizer, recompute, 4)
        yield Case(deep, precision, "adam", "operators", 4)
        yield Case(wide, precision, "adam", "none", 2)
    yield Case(deep, "fp32", "adam", "none", 1)
    for optimizer in ("adam", "sgd"):
        yield Case(None, "fp32", optimizer, "none", 32)


def predicted(case: Case) -> float:
    """Predicted bytes of tensors."""
    return memory.memory(case.model or _table(), case.job).allocated


def _table() -> LayerTable:
    from emulator.jobs.workload.torch_modules import count
    from emulator.lab.validation.memory.modules import network

    return count(network(), [(3, SIDE, SIDE)])


def measured(case: Case) -> float:
    """Peak bytes of tensors in a step."""
    import torch

    from emulator.lab.validation.memory.modules import GPT, Optimizer, network
    from host_agent.memory.tracker import Tracker

    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    torch.manual_seed(0)
    loss_of: Callable[[], torch.Tensor]
    with Tracker() as tracker:
        if case.model is not None:
            net: torch.nn.Module = GPT(case.model, case.recompute).to(dtype)
            batch = torch.randint(case.model.vocabulary, (case.micro_batch, case.model.sequence))
            loss_of = lambda: net(batch)  # noqa: E731
        else:
            net = network().to(dtype)
            batch = torch.randn(case.micro_batch, 3, SIDE, SIDE, dtype=dtype)
            labels = torch.zeros(case.micro_batch, dtype=torch.long)
            loss_of = lambda: torch.nn.functional.cross_entropy(net(batch), labels)  # noqa: E731
        optimizer = Optimizer(net.parameters(), case.optimizer)
        for _ in range(STEPS):
            tracker.peak = tracker.now
            loss_of().backward()
            optimizer.step()
            for weight in net.parameters():
                weight.grad = None
    return float(tracker.peak)


def rows(progress: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Rows of all cases."""
    found = []
    for case in cases():
        progress(case.name)
        found.append(Row(case.name, measured(case) / MIB, predicted(case) / MIB, "MiB"))
    return found
