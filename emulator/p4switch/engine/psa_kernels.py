"""The packet path of psa as kernels: `process` takes a batch through it, `serve` what waits."""

from emulator.p4switch.engine import batch, frames, queues
from emulator.p4switch.engine.kernels import compile_path
from emulator.p4switch.packet_path import psa, traffic_manager

_kernels = compile_path(__name__, [frames, queues], [traffic_manager, psa, batch])
process, serve = _kernels["process"], _kernels["serve"]
