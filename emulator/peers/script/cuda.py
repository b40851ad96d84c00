"""Makes torch.cuda that of the emulated GPU: its functions (`answers.py`), streams and events, generators, memory."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch.jit._builtins import _register_builtin
from torch.utils._device import _device_constructors

from emulator.cluster.accelerator import Accelerator
from emulator.peers.script import typed
from emulator.peers.script.allocator import Allocator
from emulator.peers.script.answers import Answers
from emulator.peers.script.clock import Clock
from emulator.peers.script.device import current
from emulator.peers.script.streams import Event, Stream, clocks
from emulator.peers.script.tensors import DeviceTensor
from switchml.errors import EmulationError


def install(accelerator: Accelerator, devices: int, index: int, clock: Clock, memory: Allocator) -> None:
    """Patch torch.cuda to report `devices` such accelerators, of which this process uses number `index`."""
    clocks[:] = [clock]
    answers = Answers(accelerator, devices, index, clock, memory)
    named = {name: getattr(answers, name) for name in dir(answers) if not name.startswith("_")}
    streams = {"Stream": Stream, "Event": Event}
    others = {
        "default_generators": tuple(Generator(f"cuda:{index}") for index in range(devices)),
        "ExternalStream": lambda stream, *_, **__: Stream(number=stream),
        "_sleep": _nothing,
        "_exchange_device": lambda device: index,
        "_maybe_exchange_device": lambda device: index,
    }
    accelerators = {
        **_shared(torch.accelerator, named),
        "get_memory_info": answers.mem_get_info,
        **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: index),
        **dict.fromkeys(("set_device_index", "set_device_idx"), _nothing),
    }
    tensors = {"record_stream": _nothing, "pin_memory": lambda tensor, *_: tensor, "data": _data()}
    storage = torch.UntypedStorage
    pools = dict.fromkeys(("MemPool", "CUDAPluggableAllocator"), _Refused)
    replace(torch.cuda, named | streams | others | pools | dict.fromkeys(_GRAPHS, _NoGraph))
    history = {"_record_memory_history": _nothing, "_dump_snapshot": _no_snapshot, "_snapshot": _no_snapshot}
    replace(torch.cuda.memory, _shared(torch.cuda.memory, named) | history | pools)
    replace(torch.cuda.random, _shared(torch.cuda.random, named))
    replace(torch.cuda.profiler, {"cudart": answers.cudart, "check_error": answers.check_error})
    replace(torch.cuda.nvtx, dict.fromkeys(("range_push", "range_pop", "range_start", "range_end", "mark"), _nothing))
    replace(torch.cuda.streams, streams)
    replace(torch.cuda.nccl, {"version": lambda: (2, 27, 5)})
    cudnn = {"is_available": lambda: True, "is_acceptable": _cudnn_takes, "version": lambda: 91002}
    replace(torch.backends.cudnn, cudnn)
    replace(torch.accelerator, accelerators)
    replace(torch.Tensor, tensors)
    replace(torch.nn.Module, {"_apply": _applied(torch.nn.Module._apply)})
    replace(storage, _storages(storage.resize_, storage.nbytes, storage.data_ptr))
    replace(torch.backends.cuda, {"preferred_linalg_library": _nothing})
    bindings = {
        "_cuda_getCurrentRawStream": lambda device: clock.stream,
        "_cuda_getDevice": answers.current_device,
        "_cuda_getDeviceCount": answers.device_count,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_clearCublasWorkspaces": _nothing,
        "_cuda_emptyCache": answers.empty_cache,
    }
    replace(torch._C, {"_scatter": _scatter} | bindings)
    replace(torch.version, {"cuda": torch.version.cuda or "13.0"})
    replace(torch, streams | {"Generator": Generator, "tensor": _unpinned(torch.tensor)})
    typed.install()


def _shared(module: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to functions that a module has, too."""
    return {name: answer for name, answer in named.items() if hasattr(module, name)}


def replace(owner: Any, attributes: dict[str, Any]) -> None:
    """Replace attributes of `owner`."""
    for name, value in attributes.items():
        setattr(owner, name, value)


def _unpinned(make: Any) -> Any:
    """Return torch.tensor, which pins what it makes itself, where there is no driver for that."""

    @functools.wraps(make)
    def made(*arguments: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor: torch.Tensor = make(*arguments, **options)
        return tensor

    _device_constructors()  # which torch.device("cuda") as a context changes: cached with `make`
    _register_builtin(made, "aten::tensor")
    return made


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
        vars(other).update(vars(tensor))
        torch.utils.swap_tensors(tensor, other)

    return property(plain.__get__, change)


def _applied(apply: Any) -> Any:
    """Return Module._apply, which swaps parameters, for modules that keep a tensor computed from them on the host, as
    `weight_norm` does: its graph would prevent that. The next forward pass computes such a tensor anew. Parameters of a
    package's class are not swapped: quantized weights convert themselves."""

    def applied(module: torch.nn.Module, change: Any, *arguments: Any, **options: Any) -> torch.nn.Module:
        for name in [name for name, value in vars(module).items() if _is_computed_here(value)]:
            vars(module)[name] = vars(module)[name].detach()
        every = module._parameters
        own = {name: change(one) for name, one in every.items() if type(one) not in _SWAPPED and _is_emulated(one)}
        vars(module)["_parameters"] = {name: one for name, one in every.items() if name not in own}
        try:
            apply(module, change, *arguments, **options)
        finally:
            vars(module)["_parameters"] = {name: own.get(name, module._parameters.get(name)) for name in every}
        return module

    return applied


_SWAPPED = (DeviceTensor, torch.nn.Parameter)


def _is_emulated(one: Any) -> bool:
    return isinstance(one, DeviceTensor)


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


def _no_snapshot(*_: Any, **__: Any) -> None:
    warnings.warn("snapshots of memory are not emulated: `switchml emulate --timeline` has tracks of it", stacklevel=2)


class _Refused:
    """Replaces classes of allocators that a script brings."""

    def __init__(self, *_: Any, **__: Any):
        raise EmulationError("a memory pool or an allocator of the script can't be emulated: expected torch's own")


class _NoGraph:
    """Replaces classes and functions of CUDA graphs: they can be named in annotations, but not used."""

    def __init__(self, *_: Any, **__: Any):
        raise EmulationError("CUDA graphs can't be emulated: expected a script that runs without them")


_GRAPHS = ("CUDAGraph", "graph", "graph_pool_handle", "make_graphed_callables")


class Generator(torch._C.Generator):
    """A generator of any device. That of a GPU never draws: its state is what the script has set, a seed and an offset
    (at::CUDAGeneratorImpl)."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator.__new__(cls, "cpu")  # type: ignore[call-arg]

    def __init__(self, device: Any = "cpu"):
        where = torch.device(device)
        self._device = torch.device("cuda", where.index or 0) if where.type == "cuda" else where
        self._state = torch.zeros(16, dtype=torch.uint8)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def get_state(self) -> torch.Tensor:
        return self._state.clone() if self._device.type == "cuda" else super().get_state()

    def set_state(self, state: torch.Tensor) -> Any:
        if self._device.type != "cuda":
            return super().set_state(state)
        self._state = state.clone()
        return self
