// Sparse streams: docs/protocol.md, section 8. A packet without data, or with words in front of its data, becomes a
// packet like any other before the rule of protocol 2 looks at it; afterwards this file keeps the words, corrects what
// is to happen to the lanes, and gives what leaves its shape. Dense packets pass by with two conditions.
//
// A slot's kind has KIND_RESULT's bit set while its round is sparse (contributions have no such kinds). Then `ahead` is
// the number of columns, and `need` says whether the round has data.

#define WORD_LEAST(kept, fresh) (fresh < kept ? fresh : kept)

// The format, once the sender's job is known: `meta.size` is the job's if the packet fits it, else 0.
control SparseFormat(inout headers_t hdr, inout meta_t meta) {
    action check() {
        bit<16> rest = hdr.udp.length - 18 - ((bit<16>)hdr.switchml.ahead << 2);
        bit<3> got = meta.size;
        meta.size = 0;
        if (meta.has_words == 1 && meta.job.is_v1 == 0 && meta.job.tree == 0) {
            if (got == meta.job.size && hdr.switchml.size == (SPARSE | got)) {
                if ((got == SIZE_256 && rest == 256) || (got == SIZE_1024 && rest == 1024)) {
                    meta.has_data = 1;
                    meta.size = meta.job.size;
                }
            } else if (got == 0 && hdr.switchml.size == SPARSE && rest == 0 && meta.job.size == SIZE_256) {
                meta.size = meta.job.size;
            } else if (got == 0 && hdr.padding.isValid() && rest == 512 && meta.job.size == SIZE_1024) {
                meta.size = meta.job.size;
            }
        }
        hdr.switchml.size = meta.size;
    }
    apply {
        check();
    }
}

control Sparse(inout headers_t hdr, inout meta_t meta) {
    @name(".words") register<bit<256>>(ROWS) words;

    bit<256> kept;
    bit<1> had_data;

    // The packet's words; columns that it does not have are never the least.
    action words_of_packet() {
        bit<256> all_ones = ~256w0;
        kept = all_ones;
        kept[255:224] = hdr.word_1.w0;
        if (hdr.word_2.isValid()) {
            kept[223:192] = hdr.word_2.w1;
        }
        if (hdr.word_4.isValid()) {
            kept[191:160] = hdr.word_4.w2;
            kept[159:128] = hdr.word_4.w3;
        }
        if (hdr.word_8.isValid()) {
            kept[127:96] = hdr.word_8.w4;
            kept[95:64] = hdr.word_8.w5;
            kept[63:32] = hdr.word_8.w6;
            kept[31:0] = hdr.word_8.w7;
        }
    }
    action keep_words() {
        words_of_packet();
        words.write(meta.slot.row, kept);
    }
    action keep_least() {
        bit<256> before;
        words_of_packet();
        words.read(before, meta.slot.row);
        kept[255:224] = WORD_LEAST(before[255:224], kept[255:224]);
        kept[223:192] = WORD_LEAST(before[223:192], kept[223:192]);
        kept[191:160] = WORD_LEAST(before[191:160], kept[191:160]);
        kept[159:128] = WORD_LEAST(before[159:128], kept[159:128]);
        kept[127:96] = WORD_LEAST(before[127:96], kept[127:96]);
        kept[95:64] = WORD_LEAST(before[95:64], kept[95:64]);
        kept[63:32] = WORD_LEAST(before[63:32], kept[63:32]);
        kept[31:0] = WORD_LEAST(before[31:0], kept[31:0]);
        words.write(meta.slot.row, kept);
    }
    action no_words() {
        hdr.word_1.setInvalid();
        hdr.word_2.setInvalid();
        hdr.word_4.setInvalid();
        hdr.word_8.setInvalid();
        hdr.padding.setInvalid();
    }
    action put_words() {
        words.read(kept, meta.slot.row);
        no_words();
        hdr.word_1.setValid();
        hdr.word_1.w0 = kept[255:224];
        if (meta.slot.ahead >= 2) {
            hdr.word_2.setValid();
            hdr.word_2.w1 = kept[223:192];
        }
        if (meta.slot.ahead >= 4) {
            hdr.word_4.setValid();
            hdr.word_4.w2 = kept[191:160];
            hdr.word_4.w3 = kept[159:128];
        }
        if (meta.slot.ahead >= 8) {
            hdr.word_8.setValid();
            hdr.word_8.w4 = kept[127:96];
            hdr.word_8.w5 = kept[95:64];
            hdr.word_8.w6 = kept[63:32];
            hdr.word_8.w7 = kept[31:0];
        }
        hdr.udp.length = 18 + ((bit<16>)meta.slot.ahead << 2);
        hdr.switchml.size = SPARSE;
    }
    action put_data() { // fetched or summed later
        hdr.first.setValid();
        hdr.switchml.size = hdr.switchml.size | meta.job.size;
        if (meta.job.size == SIZE_256) {
            hdr.udp.length = hdr.udp.length + 256;
        } else {
            hdr.udp.length = hdr.udp.length + 1024;
#ifdef REST_WORDS
            hdr.rest.setValid();
#endif
        }
    }
    action no_data() {
        hdr.first.setInvalid();
#ifdef REST_WORDS
        hdr.rest.setInvalid();
#endif
    }
    action be_dense() {
        no_words();
        hdr.udp.length = 18;
        hdr.switchml.size = 0;
    }
    // What a later packet of a round does to the lanes of a sparse slot, if it is like the first.
    action join_round() {
        if (meta.has_data == 0) {
            meta.step = 0;
        } else if (had_data == 0) {
            meta.step = STORE;
            meta.slot.need = 1;
        }
    }
    action disagree() {
        meta.slot.flags = meta.slot.flags | MIXED;
        meta.step = 0;
    }

    // After the rule, before the sums.
    apply {
        had_data = meta.slot.before_need[0:0];
        if (meta.step == STORE) { // a new round, which this packet opens
            if (meta.is_sparse == 1) {
                keep_words();
                meta.slot.need = (bit<8>)meta.has_data;
                if (meta.has_data == 0) {
                    meta.step = 0;
                }
            }
        } else if (meta.slot.kind & KIND_RESULT != 0 &&
                   (meta.outcome == CONSUMED || meta.outcome == COMPLETED || meta.outcome == ANSWERED)) {
            meta.slot.need = meta.slot.before_need;
            meta.slot.ahead = meta.slot.before_ahead;
            if (meta.outcome == ANSWERED) {
                meta.step = 0;
            } else if (meta.step == ADD && meta.slot.ahead == hdr.switchml.ahead) {
                keep_least();
                join_round();
            } else {
                disagree();
            }
            // What leaves needs lanes that are not the packet's.
            if (meta.step == 0 && had_data == 1 && meta.outcome != CONSUMED) {
                meta.step = FETCH;
            }
        }

        if (meta.outcome == WAITED) {
            no_words();
        } else if (meta.outcome == COMPLETED || meta.outcome == ANSWERED) {
            if (meta.slot.kind & KIND_RESULT == 0) {
                be_dense();
                put_data();
            } else {
                put_words();
                if (meta.slot.need == 1) {
                    put_data();
                } else {
                    no_data();
                }
            }
        }
    }
}
