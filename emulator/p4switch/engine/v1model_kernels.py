"""The v1model packet path as kernels: `process` processes a batch, `serve` the waiting packets."""

from emulator.p4switch.engine import batch, frames, queues
from emulator.p4switch.engine.kernels import compile_path
from emulator.p4switch.packet_path import traffic_manager, v1model

_kernels = compile_path(__name__, [frames, queues], [traffic_manager, v1model, batch])
process, serve = _kernels["process"], _kernels["serve"]
