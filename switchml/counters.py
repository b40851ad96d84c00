"""The names of an aggregator's counters, in the order of the columns of its counter arrays."""

COUNTERS = (
    "accepted",
    "completed",
    "answered",
    "duplicates",
    "waits",
    "stale",
    "refused_window",
    "refused_tag",
    "refused_format",
    "received_packets",
    "received_bytes",
    "sent_packets",
    "sent_bytes",
    "retransmissions",
    "overflow",
    "mixed",
    "refused_auth",
)
"""Counters per rank of a job. `completed` counts the rounds that this rank's packet completed; `answered` the results
sent again; `waits` the wait packets sent; `retransmissions` the contributions with R set."""

REFUSED = ("refused_address",)
"""Counters of the data plane as a whole: packets from addresses that have not joined, or whose rank sends its packets
through shared memory."""
MALFORMED = "refused_message"
"""Counter of messages at the control port that could not be parsed."""

(
    ACCEPTED,
    COMPLETED,
    ANSWERED,
    DUPLICATES,
    WAITS,
    STALE,
    REFUSED_WINDOW,
    REFUSED_TAG,
    REFUSED_FORMAT,
    RECEIVED_PACKETS,
    RECEIVED_BYTES,
    SENT_PACKETS,
    SENT_BYTES,
    RETRANSMISSIONS,
    OVERFLOW,
    MIXED,
    REFUSED_AUTH,
) = range(len(COUNTERS))
"""Columns of the counters."""
