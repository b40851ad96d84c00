// What a packet of protocol 2 does to its slot: docs/protocol.md, section 3. A packet's epoch is its sequence
// number without slot and version, counted from what its slot has at the job's start: all registers are 0 then.
// `packet_before` is the epoch of the slot's round before, which is the other version's.
//
// Both rules are one action each: simple_switch runs a branch within an action faster than a table for each branch.

control RuleV2(in headers_t hdr, inout meta_t meta) {
    action decide() {
        bit<32> distance = meta.slot.packet_epoch - meta.slot.epoch;
        if (distance == 0) {
            if (meta.slot.kind == 0) { // the slot was never used: this is a round of its made-up past
                meta.outcome = REFUSED_WINDOW;
            } else if (meta.slot.missing & meta.job.me != 0) {
                meta.slot.missing = meta.slot.missing & ~meta.job.me;
                meta.slot.need = MAX_SIGNED(meta.slot.need, hdr.switchml.need);
                meta.slot.ahead = MAX_SIGNED(meta.slot.ahead, hdr.switchml.ahead);
                if (meta.slot.used != hdr.switchml.used || meta.slot.kind != hdr.switchml.kind) {
                    meta.slot.flags = meta.slot.flags | MIXED;
                }
                if (meta.slot.kind == hdr.switchml.kind) {
                    meta.step = ADD;
                } else if (meta.slot.missing == 0) {
                    meta.step = FETCH;
                }
                if (meta.slot.missing == 0) {
                    meta.outcome = COMPLETED;
                } else {
                    meta.outcome = CONSUMED;
                }
            } else if (meta.slot.missing == 0) {
                meta.step = FETCH;
                meta.outcome = ANSWERED;
            } else if (hdr.switchml.r == 1) {
                meta.outcome = WAITED;
            } else {
                meta.outcome = DUPLICATE;
            }
        } else if (distance[31:31] == 1) {
            meta.outcome = STALE;
        } else if (distance == meta.job.slots << 1 &&
                   meta.slot.other_epoch == meta.slot.packet_before && meta.slot.other_missing == 0) {
            meta.step = STORE;
            meta.slot.epoch = meta.slot.packet_epoch;
            meta.slot.missing = meta.job.everybody & ~meta.job.me;
            meta.slot.need = hdr.switchml.need;
            meta.slot.ahead = hdr.switchml.ahead;
            meta.slot.used = hdr.switchml.used;
            meta.slot.kind = hdr.switchml.kind;
            meta.slot.flags = 0;
            if (meta.slot.missing == 0) {
                meta.outcome = COMPLETED;
            } else {
                meta.outcome = CONSUMED;
            }
        } else {
            meta.outcome = REFUSED_WINDOW;
        }
    }
    apply {
        decide();
    }
}
