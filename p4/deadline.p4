// Jobs with a deadline: docs/protocol.md, section 13. Their dense rounds end without the ranks that are late, once another
// rank's expiry says so. A round that did is complete like any other; ENDED_EARLY is one of its flags, and `ahead` the
// number of ranks in it.

control Deadline(inout meta_t meta) {
    @name(".absent") register<bit<64>>(WORKERS) absent; // of the job whose rank 0 has this number: generation, ranks
    @name(".without") register<bit<32>>(ROWS) without;  // of a round with ENDED_EARLY: the ranks that are not in it

    bit<32> away;

    action read_absent() {
        bit<64> kept;
        absent.read(kept, (bit<32>)meta.job.first);
        away = 0;
        if (kept[63:32] == meta.job.generation) {
            away = kept[31:0];
        }
        meta.without = 0;
        if (meta.slot.flags & ENDED_EARLY != 0) {
            without.read(meta.without, meta.slot.row);
        }
    }
    action write_absent() {
        absent.write((bit<32>)meta.job.first, meta.job.generation ++ away);
    }
    // What an expiry comes to. If it ends its round, it is CONSUMED like a contribution, and the missing ranks are away.
    action expire() {
        bit<32> distance = meta.slot.packet_epoch - meta.slot.epoch;
        if (distance[31:31] == 1) { // the result is gone, and nobody is missing
            meta.slot.missing = 0;
            meta.outcome = WAITED;
        } else if (distance != 0 || meta.slot.kind == 0 || meta.slot.missing & meta.job.me != 0) {
            meta.outcome = REFUSED_WINDOW;
        } else if (meta.without & meta.job.me != 0) {
            meta.step = FETCH;
            meta.outcome = ANSWERED;
        } else if (meta.slot.missing == 0) {
            meta.outcome = DUPLICATE;
        } else if (meta.slot.kind & KIND_RESULT != 0) { // it has words
            meta.outcome = WAITED;
        } else {
            away = away | meta.slot.missing;
        }
    }
    // The sender of a contribution that was accepted is back.
    action welcome() {
        away = away & ~meta.job.me;
    }
    action end_round() {
        bit<32> n = meta.job.everybody & ~meta.slot.missing; // counts its bits
        n = (n & 0x55555555) + ((n >> 1) & 0x55555555);
        n = (n & 0x33333333) + ((n >> 2) & 0x33333333);
        n = (n + (n >> 4)) & 0x0f0f0f0f;
        n = n + (n >> 8);
        n = n + (n >> 16);
        meta.slot.ahead = n[7:0] & 0x3f;
        meta.without = meta.slot.missing;
        without.write(meta.slot.row, meta.without);
        meta.slot.missing = 0;
        meta.slot.flags = meta.slot.flags | ENDED_EARLY;
        meta.reach = REACH_THOSE_IN;
        meta.outcome = COMPLETED;
        if (meta.step == 0) { // neither the expiry nor a contribution of another kind has the sum
            meta.step = FETCH;
        }
    }

    // After the rule of protocol 2, or in its place for an expiry.
    apply {
        read_absent();
        if (meta.is_expiry == 1) {
            expire();
        } else if (meta.outcome == CONSUMED || meta.outcome == COMPLETED) {
            welcome();
        }
        if (meta.outcome == CONSUMED || meta.outcome == COMPLETED) {
            write_absent();
            if (meta.slot.missing != 0 && meta.slot.missing & ~away == 0 && meta.slot.kind & KIND_RESULT == 0) {
                end_round();
            }
        } else if (meta.outcome == ANSWERED && meta.without & meta.job.me != 0) {
            meta.late = LATE;
        }
    }
}

// In egress: no copy of a result for a rank that is not in it, which gets it when it asks.
control LeaveOut(in meta_t meta, inout standard_metadata_t sm) {
    action leave_out() {
        bit<16> rank = sm.egress_rid - meta.job.first;
        if (meta.without & (32w1 << rank[7:0]) != 0) {
            mark_to_drop(sm);
            outcomes.count((bit<32>)(sm.egress_rid ++ 1w0 ++ LEFT_OUT));
        }
    }
    apply {
        leave_out();
    }
}
