"""Jobs that move here from another aggregator (docs/protocol.md, section 12): consistency of their ranks, the rounds
from which they continue, and whether there are enough resources for them.

An aggregator may die when only some ranks have been notified that their job has started. These resume, the others
begin; since a result requires all ranks, none of them has one. All join one job, which begins here.
"""

from switchml.control.job import Job
from switchml.control.membership import JoinRequest, Reason, Refused, Resumption
from switchml.protocol import handover


def lineage(request: JoinRequest) -> str:
    """Identity of the job that a rank resumes, for comparison and for messages."""
    return f"job {request.resumption.lineage:x}" if request.resumption is not None else "nothing: it begins"


def unlike(job: Job, request: JoinRequest) -> JoinRequest:
    """Request of a rank that `request` can't share a job with; `request` itself if there is none."""
    ours = lineage(request)
    others = (member.request for member in job.members.values() if lineage(member.request) != ours)
    return next((each for each in others if not (_has_no_result(each) and _has_no_result(request))), request)


def alike(job: Job, request: JoinRequest) -> JoinRequest:
    """Request of the first rank that begins, or resumes, as `request` does; `request` itself if it is the first."""
    others = (member.request for member in job.members.values())
    return next((each for each in others if (each.resumption is None) == (request.resumption is None)), request)


def waits_longer(job: Job, request: JoinRequest) -> bool:
    """Whether a rank begins while others resume: those may move on and return, so the job must wait longer for them."""
    return request.resumption is None and job.first.resumption is not None


def slots(job: Job) -> int:
    """Number of slots requested by the job's ranks. Resuming ranks, if there are any, need as many as before."""
    return (_first_to_go_on(job) or job.first).slots


def epoch(job: Job) -> int:
    """Number of times that a job has moved to another aggregator: ranks that have missed a move report fewer. 0 for a
    job that begins here, possibly with ranks that had begun elsewhere."""
    if len({lineage(each) for each in _requests(job)}) > 1:
        return 0
    return max((each.epoch for each in _resumptions(job)), default=0)


def former_tags(job: Job) -> set[int]:
    """Packet tags of the job's former epochs."""
    return {job_tag for each in _resumptions(job) for job_tag in each.former_tags}


def agreed(job: Job) -> tuple[bytes, ...]:
    """Rounds from which each part of a job continues; empty if it begins. Raises ConfigError."""
    reports = [each.rounds for each in _resumptions(job)]
    return tuple(handover.agree(part) for part in zip(*reports, strict=True)) if reports else ()


def check_room(job: Job, slots: int, parts: int) -> None:
    """Raises Refused unless a resumed job gets the resources it had: its packets in flight depend on them."""
    first = _first_to_go_on(job)
    if first is None or first.resumption is None:
        return
    had = first.slots, len(first.resumption.rounds), first.queues
    if (slots, parts, job.queues) != had:
        raise Refused(
            Reason.CAPACITY,
            f"job {job.name!r} can't go on here: it has {had[0]} slots, {had[1]} parts and {had[2]} queues of "
            f"collectives, and would get {slots}, {parts} and {job.queues}",
        )


def _has_no_result(request: JoinRequest) -> bool:
    return request.resumption is None or request.resumption.has_no_result


def _first_to_go_on(job: Job) -> JoinRequest | None:
    return next((each for each in _requests(job) if each.resumption is not None), None)


def _requests(job: Job) -> list[JoinRequest]:
    return [job.members[rank].request for rank in sorted(job.members)]


def _resumptions(job: Job) -> list[Resumption]:
    return [request.resumption for request in _requests(job) if request.resumption is not None]
