"""The notice that a rank gets when its job starts."""

from dataclasses import replace
from typing import Any

from switchml.control.allocation import advised_window
from switchml.control.dataplane import Dataplane, JobSpec
from switchml.control.membership import JoinRequest, Part, Peer, Started
from switchml.protocol.pool_state import parts_of


def started(
    dataplane: Dataplane, spec: JobSpec, request: JoinRequest, peers: tuple[Peer, ...], **others: Any
) -> Started:
    """Notice for the rank that has made `request`. `others`: further fields."""
    event = Started(
        job_id=spec.job_id,
        job_tag=spec.job_tag,
        isn=spec.isn,
        slots=spec.slots,
        window=0,
        payload_bytes=spec.payload_bytes,
        wire=spec.wire,
        data_address=dataplane.address,
        peers=peers,
        **others,
    )
    if request.is_control_only:
        return event
    return replace(
        event,
        window=advised_window(
            spec.slots,
            1 if dataplane.buffer_a_rank else spec.workers,
            dataplane.receive_buffer_bytes,
            request.receive_buffer_bytes,
        ),
        data_address=dataplane.address_for(request.address),
        segment=dataplane.segment(spec.job_id),
        link=dataplane.link(spec.job_id, request.rank),
        padded=dataplane.padded,
        dense_only=dataplane.dense_only,
        key=spec.key,
        collectives=dataplane.collectives,
        only_sums=dataplane.only_sums,
        halves=dataplane.halves and parts_of(spec.workers, spec.slots, spec.data_bytes) > 0,
        more_parts=tuple(
            Part(
                dataplane.address_for(request.addresses[number]),
                part.job_tag,
                part.isn,
                part.key,
                dataplane.segment(spec.job_id, number),
            )
            for number, part in enumerate(spec.more, 1)
        ),
    )
