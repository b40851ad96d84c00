"""Bugs to plant (`switchml simulate --plant`), to see that seeds find them.

Once a line of the table is no longer in its file, planting that bug is an error, so that the table cannot rot.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`file` of the packages in which `line` (as it stands there, once) becomes `wrong`."""

    file: str
    line: str
    wrong: str
    what: str


BUGS: dict[str, Bug] = {
    "version-bit": Bug(
        "switchml/protocol/pool_v2.py",
        "row = seq & (2 * job.slots - 1)  # version times S, plus the slot",
        "row = seq & (job.slots - 1)",
        "the aggregator ignores the version of a slot",
    ),
    "shadow-answer": Bug(
        "switchml/protocol/pool_v2.py",
        "        reply[_HEADER - 1] |= wire_format.FLAG_LATE\n    return UNICAST",
        "        reply[_HEADER - 1] |= wire_format.FLAG_LATE\n    return DROP",
        "the aggregator does not answer retransmissions of a complete round",
    ),
    "counted-twice": Bug(
        "switchml/protocol/pool_v2.py",
        "seen[row, word] |= bit",
        "pass",
        "the aggregator adds a contribution that it has added already",
    ),
    "any-round": Bug(
        "switchml/protocol/results.py",
        "if distance != 0 or not slot.busy:",
        "if not slot.busy:",
        "a worker takes the result of any round of a slot for the one it waits for",
    ),
    "never-again": Bug(
        "switchml/protocol/timers.py",
        "if lost or is_turn or ((slot.redo or probed < probes) and due <= now):",
        "if lost:",
        "a worker resends what later packets have overtaken, and has no timer",
    ),
    "early-end": Bug(
        "switchml/control/jobs.py",
        "if not job.present:",
        "if True:",
        "job control ends a job with the first rank that leaves",
    ),
    "deaf": Bug(
        "host_agent/core.py",
        "self.fail(lost(self.job, event.ranks, event.reason))",
        "pass",
        "an agent does not act on the loss of a peer",
    ),
    "no-redo": Bug(
        "switchml/protocol/handover.py",
        "redo = ahead == 1",
        "redo = ahead == 2",
        "who is ahead does not repeat its last round at another aggregator (--failover)",
    ),
    "first-report": Bug(
        "switchml/protocol/handover.py",
        "least: bytes = (rounds[0] - behind)",
        "least: bytes = rounds[0]",
        "a job goes on from the rounds of its first rank, not the least (--failover)",
    ),
    "old-tag": Bug(
        "switchml/protocol/handover.py",
        'here[2:8] = np.frombuffer(((start + number * count) & 0xFFFFFFFF).to_bytes(4, "big") + tag, np.uint8)',
        "pass",
        "packets go to another aggregator with the tag and number of the former epoch (--failover)",
    ),
    "leaves-politely": Bug(
        "emulator/networks/faults/failover.py",
        "self._session.vanish()",
        "self._session.leave()",
        "a rank that moves says that it leaves, so the others do not follow (--failover)",
    ),
    "late-counted": Bug(
        "switchml/protocol/pool_v2.py",
        "(seen[row, word] & bit == 0 and slot.count == job.workers):",
        "(seen[row, word] & bit == 0 and slot.count == job.workers and not is_partial(pool, row)):",
        "the aggregator adds what is late to a round that has ended without it (--deadlines)",
    ),
    "late-unsaid": Bug(
        "switchml/protocol/pool_v2.py",
        "reply[_HEADER - 1] |= wire_format.FLAG_LATE",
        "pass",
        "the aggregator does not tell a rank that a sum is without its gradient, which is lost (--deadlines)",
    ),
    "other-guess": Bug(
        "host_agent/core.py",
        "if call.request.late and self._follows_running(call):",
        "if False:",
        "ranks guess exponents from the results that each happens to have (--deadlines)",
    ),
    "expiry-for-resend": Bug(
        "switchml/protocol/timers.py",
        "slot.expires = now + me.identity.deadline",
        "slot.expires, slot.deadline = now + me.identity.deadline, now + probe_timeout(me, queue, now)",
        "a worker that says that it has waited for too long does not resend what was lost (--deadlines)",
    ),
    "never-expires": Bug(
        "switchml/protocol/timers.py",
        "can_expire, is_turn = me.identity.deadline != 0 and slot.words == 0, False",
        "can_expire, is_turn = False, False",
        "a worker waits for late ranks without end (--deadlines)",
    ),
    "sum-added-again": Bug(
        "switchml/protocol/best_effort.py",
        "if pool.seen[row, word] & ranks[word]:",
        "if False:",
        "the aggregator behind adds a sum of the switch with a rank that it has already (--best-effort)",
    ),
    "rank-kept": Bug(
        "switchml/protocol/best_effort.py",
        "shared.seen[index, :] = 0",
        "pass",
        "a slot of the switch keeps the ranks of the round before (--best-effort)",
    ),
    "resend-kept": Bug(
        "switchml/protocol/best_effort.py",
        "if data[0] & wire_format.R_FLAG:",
        "if False:",
        "the switch keeps retransmissions, too (--best-effort)",
    ),
    "flags-lost": Bug(
        "switchml/protocol/best_effort.py",
        "slot.flags |= flags",
        "pass",
        "the aggregator behind forgets what went wrong in a sum of the switch (--best-effort)",
    ),
    "slots-kept": Bug(
        "switchml/aggregator/best_effort.py",
        "best_effort.release_job(self._front.shared, tag)",
        "pass",
        "the switch keeps the slots of a job that is over (--best-effort)",
    ),
}
