"""Passes: functions of a job, a setting and the machine that each change one thing, using `emulator/traces/whatif`.
They are applied in the order of `PASSES`: first those that change ranks' compute, then those that only change the
all-reduces of gradients, which a search tries on the coarsened job.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from emulator import datafile
from emulator.traces.joined import Joined
from emulator.traces.optimizer import cuts
from emulator.traces.optimizer.machine import BACKEND_OF, Machine
from emulator.traces.whatif import changes
from emulator.traces.whatif.buckets import rebucket
from emulator.traces.whatif.codec import compress
from emulator.traces.whatif.edits import with_transfer_seconds
from emulator.traces.whatif.gradients import gradients
from emulator.traces.whatif.transfers import changed_s, repeated_s, transfer_bytes, transfer_s
from switchml.errors import ConfigError

ALLREDUCES = ("", "ring", "ps", "switchml")
"""Traced, ring, parameter server, or switch (or software aggregator)."""
PRECISIONS = ("", "half")


@dataclass(frozen=True)
class Setting:
    """Settings of all passes, one field each; hashable for caching."""

    buckets: tuple[int, ...] = ()
    """Caps in bytes as in DDP: bucket i closes once it holds caps[i], the last cap repeats. Empty: as traced."""
    allreduce: str = ""
    codec: tuple[str, ...] = ()
    """Codec of each bucket, the last repeats; "" is none. Specification as in docs/codecs.md, such as topk:ratio=0.01.
    """
    priority: bool = False
    """Whether buckets that are waited for first are reduced first."""
    precision: str = ""
    recompute: bool = False
    fuse: bool = False
    """Whether consecutive small ops are fused."""
    accumulate: int = 1
    """Micro-batches per all-reduce."""
    batch: float = 1.0
    """Factor on the batch size."""

    def __post_init__(self) -> None:
        if any(cap <= 0 for cap in self.buckets):
            raise ConfigError(f"bucket caps {list(self.buckets)}: expected bytes above 0")
        for name, known in (("allreduce", ALLREDUCES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; expected one of {', '.join(filter(None, known))}"
                )
        if self.accumulate < 1 or not self.batch > 0:
            raise ConfigError(
                f"{self.accumulate} micro-batches of {self.batch:g} times the batch: expected at least 1, above 0"
            )

    @property
    def samples(self) -> float:
        """Samples per iteration relative to the traced one."""
        return self.accumulate * self.batch

    def changed(self) -> dict[str, object]:
        """Return field → value for fields that differ from the traced job."""
        return {name: value for name, value in vars(self).items() if value != getattr(TRACED, name)}


TRACED = Setting()

Apply = Callable[[Joined, Setting, Machine], Joined]


@dataclass(frozen=True)
class Pass:
    """A pass. `name`: its field of `Setting`. `in_file`: whether a settings file can apply it; `advice`: otherwise, the
    change to make in the script. `keeps_results`: whether training computes the same."""

    name: str
    title: str
    in_file: bool
    keeps_results: bool
    advice: str = ""


def _allreduce(job: Joined, setting: Setting, machine: Machine) -> Joined:
    """Change the all-reduce to a ring (Patarasuk, Yuan, JPDC 2009), a server (Li et al., OSDI 2014) or the switch
    (SwitchML, NSDI 2021)."""
    if setting.allreduce == machine.traced_allreduce:
        return job
    present, transfer = gradients(job), machine.transfer(setting.allreduce)
    transfers, bucket = np.unique(present.bucket, return_inverse=True)  # buckets may be interleaved
    size, elapsed_s = transfer_bytes(job)[transfers], transfer_s(job.costs)[transfers]
    seconds = changed_s(elapsed_s, machine.traced.seconds(size), transfer.seconds(size))
    if transfer.repeat_share and not any(setting.codec):  # the codec pass adds the cost of repeated rounds with codecs
        ready_s = np.zeros(len(transfers))
        np.maximum.at(ready_s, bucket, cuts.ready(job)[0])
        seconds += repeated_s(transfer, ready_s, np.bincount(bucket, weights=present.bytes))
    return with_transfer_seconds(job, transfers, seconds)


def _codec(job: Joined, setting: Setting, machine: Machine) -> Joined:
    """Compress each bucket with its codec. All-reduces then do not queue, so exponents are never announced."""
    transfers = gradients(job).transfers
    specs = (setting.codec + setting.codec[-1:] * len(transfers))[: len(transfers)]
    if not any(specs):
        return job
    size, elapsed_s = transfer_bytes(job)[transfers], transfer_s(job.costs)[transfers]
    dense_s = machine.transfer(setting.allreduce).seconds(size)
    seconds, codec_s = np.empty(len(transfers)), np.zeros(len(transfers))
    for spec in set(specs):
        own = np.array([each == spec for each in specs])
        transfer = machine.compressed(setting.allreduce, spec)
        seconds[own] = changed_s(elapsed_s, dense_s, transfer.seconds(size))[own] + transfer.repeats_s(size[own])
        codec_s[own] = size[own] / machine.codec(spec).bytes_per_s if spec else 0.0
    return compress(job, transfers, seconds, codec_s)


_APPLY: dict[str, Apply] = {
    "precision": lambda job, _, machine: changes.half_precision(job, machine.half_speed or 1.0, machine.traced.fixed_s),
    "batch": lambda job, setting, _: changes.batch(job, setting.batch),
    "fuse": lambda job, _, machine: changes.fuse(job, machine.launch_s),
    "recompute": lambda job, *_: changes.recompute(job),
    "accumulate": lambda job, setting, _: changes.accumulate(job, setting.accumulate),
    "buckets": lambda job, setting, machine: rebucket(job, setting.buckets, machine.traced),
    "allreduce": _allreduce,
    "codec": _codec,
    "priority": lambda job, *_: changes.urgent_first(job),
}
COMPUTE = (
    Pass("precision", "half precision", False, False, "torch.autocast, or a model in bfloat16"),
    Pass("batch", "another batch size", False, False, "batch_size of the DataLoader"),
    Pass("fuse", "operator fusion", False, True, "torch.compile(model)"),
    Pass("recompute", "recomputation", False, True, "torch.utils.checkpoint"),
    Pass("accumulate", "gradient accumulation", False, False, "ddp.no_sync() in all but one of them"),
)
COMMUNICATION = (
    Pass("buckets", "buckets of gradients", True, True),
    Pass("allreduce", "all-reduce algorithm", True, True, "a parameter server (BytePS)"),
    Pass("codec", "compression", True, False),
    Pass("priority", "priority scheduling", False, True, "a scheduler such as ByteScheduler"),
)
PASSES = COMPUTE + COMMUNICATION


def apply(passes: Iterable[Pass], job: Joined, setting: Setting, machine: Machine) -> Joined:
    """Return `job` with those of `passes` that the setting enables."""
    for one in passes:
        if getattr(setting, one.name) != getattr(TRACED, one.name):
            job = _APPLY[one.name](job, setting, machine)
    return job


def in_file(setting: Setting) -> Setting:
    """Return the part of a setting that a settings file can apply."""
    fields = {one.name: getattr(setting, one.name) for one in PASSES if one.in_file}
    if setting.allreduce not in BACKEND_OF:
        del fields["allreduce"]
    return dataclasses.replace(TRACED, **fields)


def named(names: Iterable[str]) -> list[Pass]:
    """Return the passes of these names, in order. Raises ConfigError for unknown ones."""
    by_name = {one.name: one for one in PASSES}
    names = set(names)
    for name in names - by_name.keys():
        raise ConfigError(datafile.unknown("pass", name, by_name))
    return [one for one in PASSES if one.name in names]
