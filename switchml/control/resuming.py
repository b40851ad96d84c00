"""Jobs that come from another aggregator (docs/protocol.md, section 12): what their ranks have in common, from where
they go on, and whether there is room for them here."""

from switchml.control.job import Job
from switchml.control.membership import JoinRequest, Reason, Refused, Resumption
from switchml.protocol import handover


def lineage(request: JoinRequest) -> str:
    """What a rank goes on with, for comparison and for people."""
    return f"job {request.resumption.lineage:x}" if request.resumption is not None else "nothing: it begins"


def epoch(job: Job) -> int:
    """How often a job has moved to another aggregator: ranks that have not heard of every move report fewer."""
    return max((each.epoch for each in _resumptions(job)), default=0)


def former_tags(job: Job) -> set[int]:
    """Tags that packets of the job's former epochs have."""
    return {job_tag for each in _resumptions(job) for job_tag in each.former_tags}


def agreed(job: Job) -> tuple[bytes, ...]:
    """From where each part of a job goes on; empty if it begins. Raises ConfigError."""
    reports = [each.rounds for each in _resumptions(job)]
    return tuple(handover.agree(part) for part in zip(*reports, strict=True)) if reports else ()


def check_room(job: Job, slots: int, parts: int) -> None:
    """Raises Refused unless a job that goes on gets what it had: its packets under way are made for that."""
    resumption, queues = job.first.resumption, job.first.queues
    if resumption is None:
        return
    had = job.first.slots, len(resumption.rounds), queues
    if (slots, parts, job.queues) != had:
        raise Refused(
            Reason.CAPACITY,
            f"job {job.name!r} can't go on here: it has {had[0]} slots, {had[1]} parts and {had[2]} queues of "
            f"collectives, and would get {slots}, {parts} and {job.queues}",
        )


def _resumptions(job: Job) -> list[Resumption]:
    requests = (job.members[rank].request for rank in sorted(job.members))
    return [request.resumption for request in requests if request.resumption is not None]
