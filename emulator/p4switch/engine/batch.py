"""A batch of frames, in one kernel: each frame is received and processed until none of its packets waits."""

from typing import Any

from emulator.p4switch.engine.frames import begin
from emulator.p4switch.engine.layout import CELL, CTX
from emulator.p4switch.engine.plan import PLAN
from emulator.p4switch.engine.raw import ld64, st64
from emulator.p4switch.packet_path.traffic_manager import serve


def process(engine: Any, first: int, n: int) -> int:
    """Process frames first..n-1 of the batch. Returns the number of the first frame not processed, because the output
    might not fit, or because the program aborted (then `status` is set)."""
    for number in range(first, n):
        if is_full(engine):
            return number
        begin_frame(engine, number)
        engine.receive(ld64(engine + PLAN.frame))
        serve(engine)
        if ld64(engine + PLAN.status):
            return number
    return n


def is_full(plan: int) -> bool:
    """Whether there may be too little room for another frame's outgoing frames or events."""
    context = ld64(ld64(plan + PLAN.frame) + CELL.context)
    return (
        ld64(plan + PLAN.out) > ld64(plan + PLAN.out_end) - ld64(plan + PLAN.reserve)
        or ld64(plan + PLAN.n_records) > ld64(plan + PLAN.max_records) >> 1
        or ld64(context + CTX.event_at) > ld64(plan + PLAN.max_events)
    )


def begin_frame(engine: Any, number: int) -> None:
    """Create the packet of a received frame, with all metadata 0."""
    port, length = ld64(ld64(engine + PLAN.in_port) + 8 * number), ld64(ld64(engine + PLAN.in_length) + 8 * number)
    packet = ld64(engine + PLAN.frame)
    st64(engine + PLAN.source, number)
    begin(engine, packet, ld64(ld64(engine + PLAN.in_address) + 8 * number), length, port, length)
    if ld64(engine + PLAN.pool):
        engine.reset_metadata(packet)
