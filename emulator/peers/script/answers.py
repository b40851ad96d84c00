"""What functions of torch.cuda answer about the emulated GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from emulator.cluster.accelerator import Accelerator
from emulator.peers.script.allocator import Allocator
from emulator.peers.script.clock import Clock
from emulator.peers.script.streams import Stream

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


class _Runtime:
    """The CUDA runtime's functions, of which scripts call the profiler's: all succeed."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_, **__: 0


class Answers:
    """Implementations of torch.cuda functions, by name."""

    def __init__(self, accelerator: Accelerator, devices: int, index: int, clock: Clock, memory: Allocator):
        self._accelerator, self._devices, self._index = accelerator, devices, index
        self._clock, self._memory = clock, memory

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
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
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
        return stream if stream is not None else nullcontext()

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

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        return None

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """Return torch's statistics; those that the emulator doesn't keep are 0."""
        found: dict[str, int] = defaultdict(int)
        for name in ("allocated_bytes", "active_bytes"):
            found[f"{name}.all.current"] = self._memory.allocated_bytes
            found[f"{name}.all.peak"] = self._memory.peak_allocated_bytes
        found["reserved_bytes.all.current"] = self._memory.reserved_bytes
        found["reserved_bytes.all.peak"] = self._memory.peak_reserved_bytes
        return found

    def memory_snapshot(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def get_allocator_backend(self) -> str:
        return "native"

    def device_memory_used(self, device: Any = None) -> int:
        return self._memory.reserved_bytes

    def utilization(self, device: Any = None) -> int:
        return 100

    memory_usage = utilization

    def power_draw(self, device: Any = None) -> int:
        """Return milliwatts: the limit."""
        return int(self._accelerator.watts * 1000)

    def temperature(self, device: Any = None) -> int:
        return 60

    def clock_rate(self, device: Any = None) -> int:
        """Return MHz, of no accelerator in particular."""
        return 1500

    def can_device_access_peer(self, device: Any, peer: Any) -> bool:
        return True

    def set_sync_debug_mode(self, mode: Any) -> None:
        return None

    def get_sync_debug_mode(self) -> int:
        return 0

    def cudart(self) -> Any:
        return _Runtime()

    def check_error(self, result: int) -> None:
        return None

    def current_blas_handle(self) -> int:
        return 0

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = int(self._accelerator.memory_bytes)
        return total - self._memory.reserved_bytes, total

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        return f"allocated {self._memory.allocated_bytes:,} bytes, reserved {self._memory.reserved_bytes:,} bytes"

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        self._memory.capacity_bytes = fraction * self._accelerator.memory_bytes

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        return self._memory.capacity_bytes / self._accelerator.memory_bytes

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
