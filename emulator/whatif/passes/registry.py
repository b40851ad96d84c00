"""The list of passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from emulator import datafile
from emulator.optimizer.machine import BACKEND_OF, Machine
from emulator.optimizer.setting import TRACED, Setting
from emulator.traces.joined import Joined
from emulator.whatif.passes import accumulate, batch, buckets, codec, fusion, placement, precision, priority, recompute
from switchml.errors import ConfigError

Apply = Callable[[Joined, Setting, Machine], Joined]


@dataclass(frozen=True)
class Pass:
    """`name` is the field of `Setting` that it obeys. `in_file`: whether a settings file makes a job do it, without a
    change to its script; `advice`: else, what to change. `keeps_results`: whether training computes the same."""

    name: str
    title: str
    apply: Apply
    in_file: bool
    keeps_results: bool
    advice: str = ""


COMPUTE = (
    Pass("precision", "half precision", precision.apply, False, False, "torch.autocast, or a model in bfloat16"),
    Pass("batch", "another batch size", batch.apply, False, False, "batch_size of the DataLoader"),
    Pass("fuse", "operator fusion", fusion.apply, False, True, "torch.compile(model)"),
    Pass("recompute", "recomputation", recompute.apply, False, True, "torch.utils.checkpoint"),
    Pass("accumulate", "gradient accumulation", accumulate.apply, False, False, "ddp.no_sync() in all but one of them"),
)
COMMUNICATION = (
    Pass("buckets", "buckets of gradients", buckets.apply, True, True),
    Pass("placement", "who adds up gradients", placement.apply, True, True, "a parameter server (BytePS)"),
    Pass("codec", "compression", codec.apply, True, False),
    Pass("priority", "urgent buckets first", priority.apply, False, True, "a scheduler such as ByteScheduler"),
)
PASSES = COMPUTE + COMMUNICATION


def in_file(setting: Setting) -> Setting:
    """What of it a settings file makes a job do."""
    asked = {one.name: getattr(setting, one.name) for one in PASSES if one.in_file}
    if setting.placement not in BACKEND_OF:
        del asked["placement"]
    return dataclasses.replace(TRACED, **asked)


def named(names: Iterable[str]) -> list[Pass]:
    """Those of these names, in their order. Raises ConfigError for unknown ones."""
    by_name = {one.name: one for one in PASSES}
    wanted = list(names)
    for name in wanted:
        if name not in by_name:
            raise ConfigError(datafile.unknown("pass", name, by_name))
    return [one for one in PASSES if one.name in wanted]
