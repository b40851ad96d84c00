"""torch.cuda of the emulated GPU: names, capability, memory statistics, streams, events, generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from emulator.cluster.accelerator import Accelerator
from emulator.peers.script.allocator import Allocator
from emulator.peers.script.clock import Clock
from emulator.peers.script.device import current
from emulator.peers.script.tensors import DeviceTensor
from switchml.errors import EmulationError

CAPABILITY = {
    "Pascal": (6, 0),
    "Volta": (7, 0),
    "Turing": (7, 5),
    "Ampere": (8, 0),
    "Ada": (8, 9),
    "Hopper": (9, 0),
    "Blackwell": (10, 0),
    "CDNA 2": (9, 0),
    "CDNA 3": (9, 4),
}
"""Compute capability by architecture (CUDA C++ Programming Guide, table of compute capabilities); for AMD's, torch's
values for gfx90a and gfx942. Default: Ampere's."""


def install(accelerator: Accelerator, devices: int, index: int, clock: Clock, memory: Allocator) -> None:
    """Patch torch.cuda to report `devices` such accelerators, of which this process uses number `index`."""
    answers = _Answers(accelerator, devices, index, clock, memory)
    named = {name: getattr(answers, name) for name in dir(answers) if not name.startswith("_")}
    streams = {"Stream": Stream, "Event": Event}
    others = {
        "default_generators": tuple(torch.Generator() for _ in range(devices)),
        "nvtx": SimpleNamespace(range_push=_nothing, range_pop=_nothing, mark=_nothing, range=_no_range),
        "memory": SimpleNamespace(**{name: answer for name, answer in named.items() if "mem" in name}),
        "_exchange_device": lambda device: index,
        "_maybe_exchange_device": lambda device: index,
    }
    accelerators = {
        **{name: answer for name, answer in named.items() if hasattr(torch.accelerator, name)},
        **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: index),
        **dict.fromkeys(("set_device_index", "set_device_idx"), _nothing),
    }
    tensors = {"record_stream": _nothing, "pin_memory": lambda tensor, *_: tensor, "data": _data()}
    storage = torch.UntypedStorage
    replace(torch.cuda, named | streams | others | dict.fromkeys(_GRAPHS, _NoGraph))
    replace(torch.cuda.streams, streams)
    replace(torch.cuda.nccl, {"version": lambda: (2, 27, 5)})
    cudnn = {"is_available": lambda: True, "is_acceptable": _cudnn_takes, "version": lambda: 91002}
    replace(torch.backends.cudnn, cudnn)
    replace(torch.accelerator, accelerators)
    replace(torch.Tensor, tensors)
    replace(torch.nn.Module, {"_apply": _applied(torch.nn.Module._apply)})
    replace(storage, _storages(storage.resize_, storage.nbytes, storage.data_ptr))
    bindings = {"_cuda_getCurrentRawStream": lambda device: clock.stream, "_cuda_clearCublasWorkspaces": _nothing}
    replace(torch._C, {"_scatter": _scatter} | bindings)
    replace(torch.version, {"cuda": torch.version.cuda or "13.0"})
    replace(torch, streams | {"Generator": Generator})


def replace(owner: Any, attributes: dict[str, Any]) -> None:
    """Replace attributes of `owner`."""
    for name, value in attributes.items():
        setattr(owner, name, value)


def _data() -> property:
    """Return a replacement of Tensor.data. If a tensor with values is assigned one without, or vice versa, C++ would
    combine one's class with the other's storage; they are swapped instead, as in Module.to."""
    plain: Any = torch._C.TensorBase.data

    def change(tensor: torch.Tensor, data: torch.Tensor) -> None:
        if isinstance(tensor, DeviceTensor) == isinstance(data, DeviceTensor):
            plain.__set__(tensor, data)
            return
        other = data.detach()
        if isinstance(tensor, torch.nn.Parameter):
            other = torch.nn.Parameter(other, requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, other)

    return property(plain.__get__, change)


def _applied(apply: Any) -> Any:
    """Return Module._apply, which swaps parameters, for modules that keep a tensor computed from them on the host, as
    `weight_norm` does: its graph would prevent that. The next forward pass computes such a tensor anew."""

    def applied(module: torch.nn.Module, *arguments: Any, **options: Any) -> torch.nn.Module:
        for name in [name for name, value in vars(module).items() if _is_computed_here(value)]:
            vars(module)[name] = vars(module)[name].detach()
        moved: torch.nn.Module = apply(module, *arguments, **options)
        return moved

    return applied


def _is_computed_here(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None and value.device.type == "cpu"


def _storages(resize: Any, nbytes: Any, pointer: Any) -> dict[str, Any]:
    """Return storage methods that handle resize, size and address of device storages; `resize`, `nbytes` and `pointer`
    are torch's, for other storages."""

    def resized(self: Any, bytes: int) -> Any:
        return self if current().resize(self, bytes) else resize(self, bytes)

    def sized(self: Any) -> int:
        found = current().size(self)
        return nbytes(self) if found is None else found

    def address(self: Any) -> int:
        found = current().size(self)
        if found is not None:
            return self._cdata if found else 0
        try:
            return int(pointer(self))
        except RuntimeError:  # a host storage without values
            return int(self._cdata)

    return {"resize_": resized, "size": sized, "nbytes": sized, "data_ptr": address}


def _scatter(tensor: torch.Tensor, devices: Any, *_: Any) -> list[torch.Tensor]:
    """Scatter a tensor as for DataParallel with one GPU; a second GPU is refused."""
    return [tensor.to(torch.device("cuda", device)) for device in devices]


def _cudnn_takes(tensor: torch.Tensor) -> bool:
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return torch.backends.cudnn.enabled and tensor.is_cuda and tensor.dtype in floats


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _NoGraph:
    """Replaces classes and functions of CUDA graphs: they can be named in annotations, but not used."""

    def __init__(self, *_: Any, **__: Any):
        raise EmulationError("CUDA graphs can't be emulated: expected a script that runs without them")


_GRAPHS = ("CUDAGraph", "graph", "graph_pool_handle", "make_graphed_callables")


@contextmanager
def _no_range(*_: Any, **__: Any) -> Iterator[None]:
    yield


class Generator(torch._C.Generator):
    """A generator of any device; the GPU never draws random numbers."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator.__new__(cls, "cpu")  # type: ignore[call-arg]


_clocks: list[Clock] = []


class Stream:
    """A stream of the device, identified by its number on the clock."""

    def __init__(self, device: Any = None, priority: int = 0, number: int | None = None, **_: Any):
        self.number = _clocks[0].new_stream() if number is None else number
        self.device, self.priority, self.stream_id = torch.device("cuda", 0), priority, self.number
        self.cuda_stream = self.number

    def synchronize(self) -> None:
        _clocks[0].synchronize(self.number)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: Stream) -> None:
        _clocks[0].wait(self.number, _clocks[0].end_of(stream.number))

    def wait_event(self, event: Event) -> None:
        _clocks[0].wait(self.number, event.at_s)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before = _clocks[0].stream
        _clocks[0].stream = self.number
        return self

    def __exit__(self, *_: Any) -> None:
        _clocks[0].stream = self._before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class Event:
    """An event: a time on the device."""

    def __init__(self, *_: Any, **__: Any):
        self.at_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        clock = _clocks[0]
        self.at_s = clock.end_of(clock.stream if stream is None else stream.number)

    def wait(self, stream: Stream | None = None) -> None:
        clock = _clocks[0]
        clock.wait(clock.stream if stream is None else stream.number, self.at_s)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _clocks[0].wait_host(self.at_s)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two events."""
        return (end.at_s - self.at_s) * 1e3


class _Answers:
    """Implementations of torch.cuda functions, by name."""

    def __init__(self, accelerator: Accelerator, devices: int, index: int, clock: Clock, memory: Allocator):
        self._accelerator, self._devices, self._index = accelerator, devices, index
        self._clock, self._memory = clock, memory
        _clocks[:] = [clock]

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def init(self) -> None:
        return None

    def device_count(self) -> int:
        return self._devices

    def current_device(self) -> int:
        return self._index

    def set_device(self, device: Any) -> None:
        return None

    def get_device_name(self, device: Any = None) -> str:
        return self._accelerator.title

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return CAPABILITY.get(self._accelerator.architecture, (8, 0))

    def get_device_properties(self, device: Any = None) -> Any:
        major, minor = self.get_device_capability()
        return SimpleNamespace(
            name=self._accelerator.title,
            major=major,
            minor=minor,
            total_memory=int(self._accelerator.memory_bytes),
            multi_processor_count=self._accelerator.processors,
            max_threads_per_multi_processor=2048,
            warp_size=32,
            is_integrated=False,
            is_multi_gpu_board=False,
            gcnArchName="",
            uuid="",
        )

    def get_arch_list(self) -> list[str]:
        major, minor = self.get_device_capability()
        return [f"sm_{major}{minor}"]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return "bf16" in self._accelerator.flops

    def synchronize(self, device: Any = None) -> None:
        self._clock.synchronize()

    def stream(self, stream: Stream | None) -> Any:
        return stream if stream is not None else _no_range()

    def current_stream(self, device: Any = None) -> Stream:
        return Stream(number=self._clock.stream)

    def default_stream(self, device: Any = None) -> Stream:
        return Stream(number=0)

    def set_stream(self, stream: Stream) -> None:
        self._clock.stream = stream.number

    def is_current_stream_capturing(self) -> bool:
        return False

    def empty_cache(self) -> None:
        self._memory.empty_cache()

    def ipc_collect(self) -> None:
        return None

    def memory_allocated(self, device: Any = None) -> int:
        return self._memory.allocated_bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._memory.peak_allocated_bytes

    def memory_reserved(self, device: Any = None) -> int:
        return self._memory.reserved_bytes

    def max_memory_reserved(self, device: Any = None) -> int:
        return self._memory.peak_reserved_bytes

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self._memory.reset_peaks()

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self._memory.allocated_bytes,
            "allocated_bytes.all.peak": self._memory.peak_allocated_bytes,
            "reserved_bytes.all.current": self._memory.reserved_bytes,
            "reserved_bytes.all.peak": self._memory.peak_reserved_bytes,
            "active_bytes.all.current": self._memory.allocated_bytes,
            "active_bytes.all.peak": self._memory.peak_allocated_bytes,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = int(self._accelerator.memory_bytes)
        return total - self._memory.reserved_bytes, total

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        return f"allocated {self._memory.allocated_bytes:,} bytes, reserved {self._memory.reserved_bytes:,} bytes"

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        self._memory.capacity_bytes = fraction * self._accelerator.memory_bytes

    def manual_seed(self, seed: int) -> None:
        return None

    manual_seed_all = manual_seed

    def seed(self) -> None:
        return None

    seed_all = seed

    def initial_seed(self) -> int:
        return 0

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: Any, device: Any = None) -> None:
        return None

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state() for _ in range(self._devices)]

    def set_rng_state_all(self, states: Any) -> None:
        return None
