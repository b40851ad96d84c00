// What a packet of protocol 1 does to its slot: docs/protocol.md, section 1.

control RuleV1(in headers_t hdr, inout meta_t meta) {
    action decide() {
        bit<1> is_seen = 0;
        if (meta.slot.missing & meta.job.me != 0) {
            is_seen = 1;
        }
        bit<1> is_first = 0;
        if (meta.slot.missing == 0) {
            is_first = 1;
        }
        meta.slot.missing = meta.slot.missing | meta.job.me;
        meta.slot.other_missing = meta.slot.other_missing & ~meta.job.me;

        if (is_seen == 1) {
            if (meta.slot.epoch == 0) {
                meta.step = FETCH;
                meta.outcome = ANSWERED;
            } else {
                meta.outcome = DUPLICATE;
            }
        } else {
            if (meta.slot.epoch == 0) {
                meta.slot.epoch = meta.job.others;
            } else {
                meta.slot.epoch = meta.slot.epoch - 1;
            }
            if (is_first == 1) {
                meta.step = STORE;
                meta.slot.need = hdr.switchml.need;
                meta.slot.used = hdr.switchml.used;
            } else {
                meta.step = ADD;
                meta.slot.need = MAX_SIGNED(meta.slot.need, hdr.switchml.need);
                meta.slot.used = MAX_SIGNED(meta.slot.used, hdr.switchml.used);
            }
            if (meta.slot.epoch == 0) {
                meta.outcome = COMPLETED;
            } else {
                meta.outcome = CONSUMED;
            }
        }
    }
    apply {
        decide();
    }
}
