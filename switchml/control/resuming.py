"""Jobs that come from another aggregator (docs/protocol.md, section 12): what their ranks have in common, from where
they go on, and whether there is room for them here.

An aggregator may die when only some ranks have heard that their job has started. These go on, the others begin; as a
result takes all ranks, none of them has one. They meet in one job, which begins here.
"""

from switchml.control.job import Job
from switchml.control.membership import JoinRequest, Reason, Refused, Resumption
from switchml.protocol import handover


def lineage(request: JoinRequest) -> str:
    """What a rank goes on with, for comparison and for people."""
    return f"job {request.resumption.lineage:x}" if request.resumption is not None else "nothing: it begins"


def unlike(job: Job, request: JoinRequest) -> JoinRequest:
    """Of a rank that `request` can't share a job with; itself if there is none."""
    ours = lineage(request)
    others = (member.request for member in job.members.values() if lineage(member.request) != ours)
    return next((each for each in others if not (_has_no_result(each) and _has_no_result(request))), request)


def alike(job: Job, request: JoinRequest) -> JoinRequest:
    """Of the first rank that begins, or goes on, as `request` does; itself if it is the first."""
    others = (member.request for member in job.members.values())
    return next((each for each in others if (each.resumption is None) == (request.resumption is None)), request)


def waits_longer(job: Job, request: JoinRequest) -> bool:
    """Whether a rank begins where others go on: these come back, so they are not waited for at one aggregator alone."""
    return request.resumption is None and job.first.resumption is not None


def slots(job: Job) -> int:
    """That the job's ranks request. Those that go on, if there are any, need as many as they had."""
    return (_first_to_go_on(job) or job.first).slots


def epoch(job: Job) -> int:
    """How often a job has moved to another aggregator: ranks that have not heard of every move report fewer. 0 for one
    that begins here, perhaps with ranks that had begun elsewhere."""
    if len({lineage(each) for each in _requests(job)}) > 1:
        return 0
    return max((each.epoch for each in _resumptions(job)), default=0)


def former_tags(job: Job) -> set[int]:
    """Tags that packets of the job's former epochs have."""
    return {job_tag for each in _resumptions(job) for job_tag in each.former_tags}


def agreed(job: Job) -> tuple[bytes, ...]:
    """From where each part of a job goes on; empty if it begins. Raises ConfigError."""
    reports = [each.rounds for each in _resumptions(job)]
    return tuple(handover.agree(part) for part in zip(*reports, strict=True)) if reports else ()


def check_room(job: Job, slots: int, parts: int) -> None:
    """Raises Refused unless a job whose ranks go on gets what it had: its packets under way are made for that."""
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
