"""Count the device memory of weights, gradients and optimizer states, per storage in real steps: Adam in mixed
precision, Adam with its states on the host (AxoNN), and with 90 % of the weights pruned (SAMO).

    python scripts/experiments/states.py [--bucket-share 0.008] [--pruned 0.9] [--json]

The model has 24 linear layers of 512 x 512 in bfloat16. The table also shows the formulas of `switchml emulate`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import torch

from emulator.jobs.memory_options import offload_bytes, samo_bytes
from emulator.lab.validation.real.states import LAYERS, PARAMETERS, network, peak_bytes
from emulator.surface.cli.options import json_option
from host_agent.memory import OffloadedAdam, PrunedAdam, pruned
from switchml.cli.options import option
from switchml.tables import Table, number, show, text

ADAM_BYTES = 20.0
"""Bytes per parameter: weight and gradient in half precision, master weight and its gradient, two moments (Singh and
Bhatele, IPDPS 2022)."""


class MixedPrecisionAdam:
    """torch.optim.AdamW on float32 copies of half-precision weights, as in mixed-precision training."""

    def __init__(self, model: torch.nn.Module):
        self._weights = list(model.parameters())
        self._masters = [weight.detach().float() for weight in self._weights]
        self._adam = torch.optim.AdamW(self._masters, foreach=False)

    def zero_grad(self) -> None:
        for weight in self._weights:
            weight.grad = None

    def step(self) -> None:
        for master, weight in zip(self._masters, self._weights, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        self._adam.step()
        with torch.no_grad():
            for master, weight in zip(self._masters, self._weights, strict=True):
                weight.copy_(master)

    def states(self) -> Iterator[torch.Tensor]:
        """The states that exist before the first step."""
        yield from self._masters


def measured(bucket_share: float, share: float) -> list[dict[str, object]]:
    """Rows of `name`, `bytes_per_parameter` at the peak of two steps, and `formula`."""
    bucket = int(bucket_share * PARAMETERS)
    plain, offloaded, left = network(LAYERS), network(LAYERS), network(LAYERS)
    adam, left_adam = MixedPrecisionAdam(plain), PrunedAdam(pruned(left, share))
    states = [tensor for state in left_adam.state.values() for tensor in state.values()]
    peaks = {
        "adam": (peak_bytes(plain, adam, list(adam.states())), ADAM_BYTES * PARAMETERS),
        "offloaded": (
            peak_bytes(offloaded, OffloadedAdam(offloaded.parameters(), bucket=bucket)),
            offload_bytes(PARAMETERS, bucket),
        ),
        "pruned": (peak_bytes(left, left_adam, states), samo_bytes(PARAMETERS, share)),
    }
    return [
        {"name": name, "bytes_per_parameter": peak / PARAMETERS, "formula": formula / PARAMETERS}
        for name, (peak, formula) in peaks.items()
    ]


@click.command(help=__doc__)
@option(
    "--bucket-share", type=click.FloatRange(0, 1, min_open=True), default=0.008, help="Of the parameters, in a bucket."
)
@option("--pruned", "share", type=click.FloatRange(0, 1, max_open=True), default=0.9, help="Of each layer's weights.")
@json_option
def main(bucket_share: float, share: float, as_json: bool) -> None:
    torch.set_num_threads(1)
    rows = measured(bucket_share, share)
    if as_json:
        print(json.dumps({"rows": rows}))
        return
    table = Table([text("states"), number("measured"), number("formula")], title="Bytes of a parameter on the device")
    for row in rows:
        table.add(str(row["name"]), f"{row['bytes_per_parameter']:.2f}", f"{row['formula']:.2f}")
    show(table)


if __name__ == "__main__":
    main()
