"""Verification of the torch backend on a device: collectives of all dtypes against exact results, training under
DistributedDataParallel and `fully_shard` against Gloo, and kernels on side streams around all-reduces.

`compare` is the parent's side, for `switchml doctor`. All ranks share the first GPU.
"""

import os
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

from host_agent.ranks import Report, Team
from switchml.errors import SwitchMLError
from switchml.runtime.pool import fork_server

TIMEOUT_S = 60.0
TENSOR = 10_007
"""Tensor size in elements: more than one packet, and not divisible by any block or vector size."""
STEPS = 6


def compare(device: str, ranks: int = 2, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Run all checks on a device ("cpu" or "cuda"); returns one sentence per failure, or an empty list."""
    with tempfile.TemporaryDirectory(prefix="switchml-doctor-") as folder:
        places = [(rank, ranks, f"file://{folder}/rendezvous") for rank in range(ranks)]
        try:
            with Team(fork_server(), [partial(_Rank, device, *place) for place in places]) as team:
                found = team.ask("compare", timeout_s=timeout_s)
        except SwitchMLError as error:
            return [str(error)]
    return list(dict.fromkeys(chain(*found)))


class _Rank:
    """One rank's part of the comparison. The check methods return a description of what is wrong, or ""."""

    def __init__(self, device: str, rank: int, ranks: int, rendezvous: str, report: Report):
        for name in list(os.environ):  # settings of other jobs
            if name.startswith("SWITCHML_"):
                del os.environ[name]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        warnings.simplefilter("ignore", FutureWarning)  # for names that are deprecated in newer versions of torch
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)
        self.rank, self.ranks = rank, ranks
        if device == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "switchml", init_method=rendezvous, rank=rank, world_size=ranks, timeout=timedelta(seconds=TIMEOUT_S)
        )
        self.gloo = dist.new_group(backend="gloo")

    def answer(self, request: str) -> list[str]:
        return self.run()

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()

    def run(self) -> list[str]:
        """Run all checks; returns one description per failure."""
        import torch

        found = []
        types = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
        checks: list[tuple[str, Callable[[], str]]] = []
        for dtype in types:
            checks.append((f"sums of {str(dtype)[6:]}", partial(self.sums, dtype)))
            checks.append((f"collectives of {str(dtype)[6:]}", partial(self.collectives, dtype)))
        checks.append(("kernels on side streams", self.order))
        checks.append(("DistributedDataParallel", partial(self.training, self.ddp)))
        checks.append(("fully_shard", partial(self.training, self.fsdp)))
        for what, check in checks:
            try:
                wrong = check()
            except Exception as error:  # reported; the remaining checks still run
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                found.append(f"{what}: {wrong}")
        return found

    def inputs(self, dtype: Any, count: int = TENSOR) -> list[Any]:
        """Every rank's tensor, on the CPU; identical on all ranks."""
        import torch

        made = []
        for rank in range(self.ranks):
            generator = torch.Generator().manual_seed(rank)
            if dtype.is_floating_point:
                made.append(torch.randn(count, generator=generator).to(dtype))
            else:
                made.append(torch.randint(-1000, 1000, (count,), generator=generator).to(dtype))
        return made

    def sums(self, dtype: Any) -> str:
        import torch
        import torch.distributed as dist

        inputs = self.inputs(dtype)
        exact = torch.stack([each.double() for each in inputs]).sum(0)
        x = inputs[self.rank].to(self.device)
        dist.all_reduce(x)
        return _difference(x, exact, _allowed(dtype))

    def collectives(self, dtype: Any) -> str:
        import torch
        import torch.distributed as dist

        inputs = self.inputs(dtype, TENSOR * self.ranks)
        mine = inputs[self.rank].to(self.device)
        whole, part = mine.new_empty(mine.numel() * self.ranks), mine.new_empty(TENSOR)
        most, root = mine.clone(), mine.clone()
        dist.all_gather_into_tensor(whole, mine)
        dist.reduce_scatter_tensor(part, mine.clone())
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        dist.broadcast(root, self.ranks - 1)
        allowed = _allowed(dtype)
        stacked = torch.stack([each.double() for each in inputs])
        place = slice(self.rank * TENSOR, (self.rank + 1) * TENSOR)
        results = {
            "all-gather": (whole, torch.cat(inputs).double(), 0.0),
            "reduce-scatter": (part, stacked.sum(0)[place], allowed),
            "maximum": (most, stacked.amax(0), 0.0),
            "broadcast": (root, inputs[-1].double(), 0.0),
        }
        wrong = {name: _difference(*result) for name, result in results.items()}
        return "; ".join(f"{name}: {what}" for name, what in wrong.items() if what)

    def order(self) -> str:
        """Check the order of kernels before and after several all-reduces in flight on a side stream."""
        import contextlib

        import torch
        import torch.distributed as dist

        wrong = 0
        side = torch.cuda.Stream() if self.device.type == "cuda" else None
        for turn in range(6):
            xs = [torch.full((1 << 16,), float(self.rank + turn + n), device=self.device) for n in range(3)]
            with contextlib.ExitStack() as stack:
                if side is not None:
                    side.wait_stream(torch.cuda.current_stream())
                    stack.enter_context(torch.cuda.stream(side))
                    torch.cuda._sleep(2_000_000)
                works = []
                for x in xs:
                    x.add_(1)
                    works.append(dist.all_reduce(x, async_op=True))
                if turn % 2:
                    results = [work.get_future().wait()[0] * 2 for work in works]
                else:
                    for work in works:
                        work.wait()
                    results = [x * 2 for x in xs]
            if side is not None:
                torch.cuda.current_stream().wait_stream(side)
            for n, result in enumerate(results):
                exact = 2 * sum(rank + turn + n + 1 for rank in range(self.ranks))
                wrong += int((result - exact).abs().max().item() > 1e-3)
        return f"{wrong} of 18 results were read before they were there" if wrong else ""

    def training(self, wrap: Callable[[Any, Any], Any]) -> str:
        """Compare a small network's losses over this backend with those over Gloo."""
        import torch
        import torch.distributed as dist

        losses = []
        for group in (self.gloo, dist.group.WORLD):
            torch.manual_seed(0)
            layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]
            model = wrap(torch.nn.Sequential(*layers).to(self.device), group)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            generator, row = torch.Generator().manual_seed(self.rank), []
            for _ in range(STEPS):
                x = torch.randn(128, 64, generator=generator).to(self.device)
                optimizer.zero_grad()
                loss = (model(x) - x.roll(1, -1)).square().mean()
                loss.backward()
                optimizer.step()
                row.append(loss.detach())
            losses.append([float(loss) for loss in row])
        over_gloo, ours = losses
        if max(abs(a / b - 1) for a, b in zip(ours, over_gloo, strict=True)) > 1e-3:
            return f"losses {[round(x, 5) for x in ours]}, over Gloo {[round(x, 5) for x in over_gloo]}"
        return ""

    def ddp(self, model: Any, group: Any) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, process_group=group)

    def fsdp(self, model: Any, group: Any) -> Any:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, self.device.type)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        return model


def _allowed(dtype: Any) -> float:
    """Tolerance of a sum, relative to the largest value: rounding in fixed point, and to the dtype."""
    import torch

    return max(2 * torch.finfo(dtype).eps, 1e-6) if dtype.is_floating_point else 0.0


def _difference(found: Any, exact: Any, allowed: float) -> str:
    """Describe a deviation above `allowed` (relative to the largest value), or return ""."""
    off, largest = float((found.cpu().double() - exact).abs().max()), float(exact.abs().max())
    return "" if off <= allowed * largest else f"off by {off:.3g}, of numbers up to {largest:.3g}"
