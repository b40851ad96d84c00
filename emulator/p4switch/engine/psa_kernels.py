"""The psa packet path as kernels: `process` processes a batch, `serve` the waiting packets."""

from emulator.p4switch.engine import batch, frames, queues
from emulator.p4switch.engine.kernels import compile_path
from emulator.p4switch.packet_path import psa, traffic_manager

_kernels = compile_path(__name__, [frames, queues], [traffic_manager, psa, batch])
process, serve = _kernels["process"], _kernels["serve"]
