// Trees of switches: docs/protocol.md, section 9. A switch below another one sums its own workers (or the switches
// below it) by the rule of protocol 2 alone; what these rules add is that the sum goes up, and its result comes down.
//
// A slot is complete below when nobody is missing, and KEPT once the result from above stands in its row. What is in
// the row in between is the partial sum: a retransmission fetches it, and goes up in its place.

// A packet from a worker or a switch below, after the rule of protocol 2.
control RuleBelow(in headers_t hdr, inout meta_t meta) {
    action decide() {
        meta.size = meta.size & 3; // a partial sum's lanes are those of any contribution
        if (hdr.partial.isValid() && (meta.outcome == CONSUMED || meta.outcome == COMPLETED)) {
            meta.slot.flags = meta.slot.flags | (hdr.partial.flags[3:0] & (OVERFLOW | MIXED));
        }
        if (meta.outcome == ANSWERED && meta.job.tree & HAS_ABOVE != 0 && meta.slot.flags & KEPT == 0) {
            if (hdr.switchml.r == 1) {
                meta.outcome = PASSED_UP;
            } else {
                meta.step = 0;
                meta.outcome = DUPLICATE;
            }
        }
    }
    apply {
        decide();
    }
}

// A result or wait packet from above.
control RuleAbove(in headers_t hdr, inout meta_t meta) {
    action decide() {
        bit<32> distance = meta.slot.packet_epoch - meta.slot.epoch;
        if (distance[31:31] == 1) {
            meta.outcome = STALE;
        } else if (distance != 0 || meta.slot.kind == 0 || meta.slot.missing != 0) {
            meta.outcome = REFUSED_WINDOW;
        } else if (meta.slot.flags & KEPT != 0) {
            meta.outcome = DUPLICATE;
        } else if (hdr.switchml.kind == KIND_WAIT) {
            meta.outcome = WAITED;
        } else {
            meta.step = STORE;
            meta.slot.need = hdr.switchml.need;
            meta.slot.ahead = hdr.switchml.ahead;
            meta.slot.kind = hdr.switchml.kind & ~KIND_RESULT;
            meta.slot.flags = (hdr.switchml.used[3:0] & (OVERFLOW | MIXED)) | KEPT;
            meta.outcome = COMPLETED;
        }
    }
    apply {
        decide();
    }
}
