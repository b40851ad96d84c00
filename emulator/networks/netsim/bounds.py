"""Lower bounds of a collective's time, in closed form: without loss or late ranks the simulation must agree with them.

Seconds throughout. n ranks, S bytes, links of B bits/s in each direction, L bytes on the line for every P bytes of
tensor, s slots. `sharing`: number of the job's ranks that share a host's link, and of a round's packets there.
"""

from emulator.networks.netsim.blocks import owned
from emulator.networks.netsim.config import JobConfig, LinkConfig
from switchml.protocol.packet import HEADER_BYTES, WORD_BYTES
from switchml.protocol.sizes import LANE_BYTES


def packets(job: JobConfig) -> int:
    """Packets on a rank's link in the busier direction for one all-reduce, without rounds repeated after a wrong guess.
    Where blocks of zeros are omitted, the results contain the union of all ranks' blocks, in full packets."""
    elements, per_packet = job.size_bytes // 4, job.payload_bytes // LANE_BYTES[job.wire]
    if job.block:
        blocks = owned(job.density, job.overlap, job.workers, -(-elements // job.block))
        elements = min(elements, int(blocks.any(0).sum()) * job.block)
    return max(1, -(-elements // per_packet))


def service_s(job: JobConfig, link: LinkConfig, sharing: int = 1) -> float:
    """Time that a round's packets occupy the link in the busier direction (docs/protocol.md, section 11)."""
    framing, payloads, packets = HEADER_BYTES + link.framing_bytes, 1.0, 1
    if job.collective != "all_reduce":
        framing += WORD_BYTES
    if job.collective in ("reduce_scatter", "all_gather"):
        payloads = (job.workers - 1) / job.workers
    if job.collective == "fsdp":
        packets = 2
    line = payloads * job.payload_bytes + packets * framing
    return sharing * max(8 * line / link.rate_bps, packets * link.packet_s)


def round_trip_s(job: JobConfig, link: LinkConfig, sharing: int = 1) -> float:
    """Round-trip time of a single round: twice the serialization plus twice the delay."""
    return 2 * (service_s(job, link, sharing) + link.delay_s)


def aggregation_s(
    job: JobConfig, link: LinkConfig, slots: int, above: LinkConfig | None = None, sharing: int = 1
) -> float:
    """Time of an in-network aggregation. A rank whose window of w packets covers the round trip sends at line rate:
    `RTT + (N - 1) L/B`. Otherwise it sends w packets back to back each round trip: the last of N leaves `(N-1) mod w`
    packets after the beginning of round trip `(N-1) div w` (the usual argument for a sliding window; SwitchML, NSDI'21,
    section 3.3). `above`: the link of racks that aggregate their own ranks: its round trip is added, and the slower
    link determines the rate.
    """
    links = ((link, sharing), (above, 1)) if above else ((link, sharing),)
    service = max(service_s(job, *one) for one in links)
    round_trip = sum(round_trip_s(job, *one) for one in links)
    window, last = min(slots, job.window or slots), packets(job) - 1
    if window * service >= round_trip:
        return round_trip + last * service
    return round_trip + last // window * round_trip + last % window * service
