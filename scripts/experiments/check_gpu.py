"""Check that switchml is correct and fast on this machine's GPU, in at most five minutes (docs/performance.md):
doctor's comparison, collectives of all dtypes and large buckets compared with Gloo, peak memory and times of training
steps with compressed activations, and OffloadedAdam.

    scripts/check-gpu
    python scripts/experiments/check_gpu.py --device cpu     # everything, small, without a GPU

Each part is a separate process with its own time limit: if one fails or hangs, the others' results remain.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

Row = dict[str, Any]

PARTS_S = {"comparison": 60, "collectives": 90, "activations": 100, "optimizer": 40}
"""Part → timeout on a GPU, in seconds."""
DRY_S = 600
"""Timeout of each part in a dry run, in seconds."""
DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a small dry run")
    parser.add_argument("--out", type=Path, default=Path("check-gpu.json"), help="the results, as JSON")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS_S), default=list(PARTS_S), help="some of it")
    parser.add_argument("--part", choices=list(PARTS_S), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("check-gpu: no GPU that torch can use: --device cpu tries everything small")
    if arguments.part:
        for row in PARTS[arguments.part](arguments.device):
            print(json.dumps(row), flush=True)
        return
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else f"none, a dry run on {platform.machine()}"
    report: Row = {"gpu": name, "torch": torch.__version__, "at": time.strftime("%Y-%m-%d"), "rows": []}
    print(f"GPU: {name}, torch {torch.__version__}")
    for part in arguments.parts:
        for row in _run(part, arguments.device):
            report["rows"].append({"part": part, **row})
            print(_line(part, row), flush=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {arguments.out}")
    if any("error" in row for row in report["rows"]):
        sys.exit(1)


def _run(part: str, device: str) -> Iterator[Row]:
    """Yield the rows of a part, with a row that has `error` if it failed."""
    allowed_s = PARTS_S[part] if device == "cuda" else DRY_S
    command = [sys.executable, __file__, "--part", part, "--device", device]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        problem = ""
        try:
            code = subprocess.run(command, stdout=output, stderr=errors, timeout=allowed_s, env=environment).returncode
            if code:
                errors.seek(0)
                problem = (errors.read().strip().splitlines() or [f"exit code {code}"])[-1]
        except subprocess.TimeoutExpired:
            problem = f"not done after {allowed_s} s"
        output.seek(0)
        for line in output:
            if line.startswith("{"):
                yield json.loads(line)
        if problem:
            yield {"what": part, "error": problem}


def _line(part: str, row: Row) -> str:
    """A row as a line of text, at most 80 columns unless it is an error."""
    cells = [f"{row['what']:<28}"]
    if "error" in row:
        return f"{part:<12} {cells[0]} WRONG: {row['error']}"
    for name, value in row.items():
        if name.endswith("_ms"):
            cells.append(f"{name[:-3]} {value:.4g} ms")
        elif name.startswith("times"):
            cells.append(f"{value:.2f}x")
        elif name == "lower":
            cells.append(f"peak {value:.2f}x lower")
    return f"{part:<12} {' '.join(cells)}".rstrip()


def comparison(device: str) -> Iterator[Row]:
    """The comparison of `switchml doctor`."""
    from host_agent.comparison import compare

    wrong = compare(device, timeout_s=PARTS_S["comparison"] - 5 if device == "cuda" else DRY_S - 5)
    yield {"what": "right" if not wrong else "comparison", **({"error": "; ".join(wrong)} if wrong else {})}


def collectives(device: str) -> Iterator[Row]:
    """All-reduces of two ranks in child processes, alternating between this backend and Gloo. "times_gloo" is Gloo's
    time over this backend's."""
    from host_agent.ranks import Team
    from switchml.runtime.pool import fork_server

    with tempfile.TemporaryDirectory() as folder:
        makers = [partial(_CollectivesRank, rank, f"file://{folder}/rendezvous") for rank in range(2)]
        with Team(fork_server(), makers) as team:
            yield from team.ask(device)[0]


class _CollectivesRank:
    """One rank of `collectives`: a request is the name of a device, the response its rows."""

    def __init__(self, rank: int, rendezvous: str, report: object):
        torch.set_num_threads(1)
        dist.init_process_group("switchml", init_method=rendezvous, rank=rank, world_size=2)
        self._groups = {"switchml": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def answer(self, device: str) -> list[Row]:
        return _rows_of_collectives(device, self._groups)

    def leave(self) -> None:
        dist.barrier(self._groups["gloo"])
        dist.destroy_process_group()


def _rows_of_collectives(device: str, groups: dict[str, Any]) -> list[Row]:
    is_real = device == "cuda"
    sizes = [1 << 20, 16 << 20] if is_real else [64 << 10]
    cases = [(each, dtype, size) for size in sizes for each in sorted({"cpu", device}) for dtype in DTYPES]
    cases += [(device, "float32", size) for size in ((64 << 20, 256 << 20) if is_real else (256 << 10,))]
    rows = []
    for where, dtype, size in cases:
        kind = getattr(torch, dtype)
        x = torch.ones(size // kind.itemsize, dtype=kind, device=where)

        def turn(group: Any, x: torch.Tensor = x) -> float:
            _sync(device)
            dist.barrier(groups["gloo"])
            started = time.perf_counter()
            dist.all_reduce(x, group=group)
            _sync(device)
            elapsed_s = time.perf_counter() - started
            x.fill_(1)  # Else sums grow from turn to turn
            return elapsed_s

        times = {name: [] for name in groups}
        for _ in range(6):
            for name, group in groups.items():
                times[name].append(turn(group))
        ours, others = (statistics.median(times[name][1:]) for name in ("switchml", "gloo"))
        large = " bucket" if size > sizes[-1] else ""
        amount = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        what = f"{where} {dtype} {amount}{large}"
        rows.append({"what": what, "ours_ms": ours * 1e3, "gloo_ms": others * 1e3, "times_gloo": others / ours})
    return rows


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).split(width, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(attended.reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


Step = Callable[[torch.optim.Optimizer], torch.Tensor]


def _transformer(device: str) -> tuple[nn.Module, Step]:
    """A model with GPT-2 355M's layers, and its step, under autocast."""
    layers, width, words, shape = (24, 1024, 50304, (8, 1024)) if device == "cuda" else (2, 32, 64, (8, 32))
    blocks = (Block(width, width // 16 if width < 1024 else 16) for _ in range(layers))
    model = nn.Sequential(nn.Embedding(words, width), *blocks, nn.LayerNorm(width), nn.Linear(width, words, bias=False))
    model.to(device)
    tokens = torch.randint(words, shape, device=device)

    def step(optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


def _cnn(device: str) -> tuple[nn.Module, Step]:
    """A network of convolutions, normalization and ReLU in float32, and its step."""
    depth, width, size, images = (16, 64, 112, 64) if device == "cuda" else (6, 8, 32, 8)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).to(device)
    x, y = torch.randn(images, 3, size, size, device=device), torch.randint(10, (images,), device=device)

    def step(optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


def activations(device: str) -> Iterator[Row]:
    """Steps of two networks, plain and with each codec: step time, and reduction of peak memory."""
    from host_agent.memory import compressed_activations

    for name, make in (("transformer", _transformer), ("cnn", _cnn)):
        plain: tuple[float, int] | None = None
        for codec in (None, "int8", "fp16", "host", "levels", "szx"):
            torch.manual_seed(0)
            model, step = make(device)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
            compressed = compressed_activations(model, codec, optimizer=optimizer) if codec else None
            elapsed_s, peak = _measured(lambda step=step, optimizer=optimizer: step(optimizer), device)
            row: Row = {"what": f"{name} {codec or 'plain'}", "step_ms": elapsed_s * 1e3, "peak_bytes": peak}
            if plain is None:
                plain = elapsed_s, peak
            else:
                row |= {"times_plain": elapsed_s / plain[0], "lower": plain[1] / peak}
            if compressed is not None:
                row["stats"] = {key: value for key, value in compressed.stats().items() if value != float("inf")}
                compressed.close()
            yield row
            del model, step, optimizer, compressed
            _forget(device)


def optimizer(device: str) -> Iterator[Row]:
    """Steps of the transformer with AdamW and OffloadedAdam."""
    from host_agent.memory import OffloadedAdam

    plain_s = 0.0
    for name, kind in (("AdamW", torch.optim.AdamW), ("OffloadedAdam", OffloadedAdam)):
        torch.manual_seed(0)
        model, step = _transformer(device)
        made = kind(model.parameters(), lr=1e-4)
        elapsed_s, peak = _measured(lambda step=step, made=made: step(made), device)
        plain_s = plain_s or elapsed_s
        yield {"what": name, "step_ms": elapsed_s * 1e3, "times_plain": elapsed_s / plain_s, "peak_bytes": peak}
        del model, step, made
        _forget(device)


def _measured(step: Callable[[], object], device: str) -> tuple[float, int]:
    """Median seconds of a step, and peak bytes in use in a step; without the first two steps, which allocate memory."""
    from host_agent.memory import Tracker

    for _ in range(2):
        step()
    times = []
    _forget(device)
    for _ in range(5 if device == "cuda" else 2):
        _sync(device)
        started = time.perf_counter()
        step()
        _sync(device)
        times.append(time.perf_counter() - started)
    if device == "cuda":
        # Includes blocks that a side stream still reads: active, not only allocated.
        return statistics.median(times), torch.cuda.memory_stats()["active_bytes.all.peak"]
    with Tracker() as tracker:
        step()
    return statistics.median(times), tracker.peak


def _sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _forget(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


PARTS: dict[str, Callable[[str], Iterator[Row]]] = {
    "comparison": comparison,
    "collectives": collectives,
    "activations": activations,
    "optimizer": optimizer,
}

if __name__ == "__main__":
    main()
