// Sparse streams and addressed packets: docs/protocol.md, sections 8 and 11. A packet without data, or with words in
// front of its data, becomes a packet like any other before the rule of protocol 2 looks at it; afterwards this file
// keeps the words, corrects what is to happen to the lanes, and gives what leaves its shape. Dense packets pass by with
// two conditions.
//
// A slot's kind has KIND_RESULT's bit set while its round has words (contributions have no such kinds). Then the top bit
// of `ahead` says whether the round has data, and the others are the number of columns, 0 in an addressed round.

#define WORD_LEAST(kept, fresh) (fresh < kept ? fresh : kept)

// 512 bytes in place of data of 1024: a packet that gets those in their place may grow by no more.
action put_padding(inout headers_t hdr) {
    hdr.padding.setValid();
    hdr.switchml.size = SIZE_PADDED;
    hdr.udp.length = hdr.udp.length + LENGTH_PADDING;
}

// The format, once the sender's job is known: `meta.size` is the job's if the packet fits it, else 0.
control SparseFormat(inout headers_t hdr, inout meta_t meta) {
    action check() {
        bit<8> sender = hdr.switchml.ahead & 0xc0;
        meta.flags_below = (bit<4>)hdr.switchml.ahead[5:4];
        if (meta.job.tree & FROM_BELOW != 0) {
            sender = sender ^ PARTIAL;
        } else {
            sender = sender | (bit<8>)meta.flags_below;
        }
        hdr.switchml.ahead = hdr.switchml.ahead & 0x0f;
        bit<16> rest = hdr.udp.length - 18 - (hdr.switchml.ahead == ADDRESSED ? 4 : (bit<16>)hdr.switchml.ahead << 2);
        bit<3> got = meta.size;
        bit<3> payload = meta.job.size & 3;
        meta.size = 0;
        if (meta.words_parsed == 1 && meta.job.is_v1 == 0 && sender == 0) {
            if (got == payload && hdr.switchml.size == (SPARSE | got)) {
                if ((got == SIZE_256 && rest == 256) || (got == SIZE_1024 && rest == 1024)) {
                    meta.has_data = 1;
                    meta.size = meta.job.size;
                }
            } else if (got == 0 && hdr.switchml.size == SPARSE && rest == 0 &&
                       (payload == SIZE_256 || meta.job.tree == FROM_ABOVE)) {
                meta.size = meta.job.size;
            } else if (got == 0 && hdr.padding.isValid() && rest == LENGTH_PADDING && payload == SIZE_1024) {
                meta.size = meta.job.size;
            }
        }
        if (hdr.switchml.ahead == ADDRESSED &&
            (hdr.word_1.w0[31:24] > (bit<8>)REACH_OTHERS || hdr.word_1.w0[15:8] > LAST_OP ||
             (hdr.word_1.w0[15:8] != OP_SUM && hdr.switchml.kind & ~KIND_RESULT != KIND_INT32))) {
            meta.size = 0;
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
    bit<256> before;
    bit<1> had_data;
    bit<1> is_alike;

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
    // Whether a later packet belongs to the round: as many columns or, if addressed, the same reach, root and op.
    action compare() {
        words.read(before, meta.slot.row);
        is_alike = 0;
        if (meta.step == ADD && meta.slot.ahead[6:0] == hdr.switchml.ahead[6:0] &&
            (hdr.switchml.ahead != ADDRESSED || before[255:232] == hdr.word_1.w0[31:8])) {
            is_alike = 1;
        }
    }
    action keep_least() {
        words_of_packet();
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
        hdr.partial.setInvalid();
    }
    action put_words() {
        words.read(kept, meta.slot.row);
        no_words();
        hdr.word_1.setValid();
        hdr.word_1.w0 = kept[255:224];
        bit<8> columns = meta.slot.ahead & 0x7f;
        if (columns >= 2) {
            hdr.word_2.setValid();
            hdr.word_2.w1 = kept[223:192];
        }
        if (columns >= 4) {
            hdr.word_4.setValid();
            hdr.word_4.w2 = kept[191:160];
            hdr.word_4.w3 = kept[159:128];
        }
        if (columns >= 8) {
            hdr.word_8.setValid();
            hdr.word_8.w4 = kept[127:96];
            hdr.word_8.w5 = kept[95:64];
            hdr.word_8.w6 = kept[63:32];
            hdr.word_8.w7 = kept[31:0];
        }
        hdr.udp.length = 18 + ((bit<16>)columns << 2);
        hdr.switchml.size = SPARSE;
        if (columns == ADDRESSED) {
            hdr.udp.length = LENGTH_CUT;
            meta.reach = kept[249:248];
            meta.root = meta.job.first + (bit<16>)kept[247:240];
            meta.root_bit = 32w1 << kept[247:240];
        }
    }
    action put_data() { // fetched or summed later
        hdr.first.setValid();
        hdr.switchml.size = hdr.switchml.size | meta.size;
        if (meta.size == SIZE_256) {
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
    // What a later packet of a round does to the lanes, if it is like the first.
    action join_round() {
        if (meta.has_data == 0) {
            meta.step = 0;
        } else if (had_data == 0) {
            meta.step = STORE;
            meta.slot.ahead = meta.slot.ahead | 0x80;
        } else if (hdr.switchml.ahead == ADDRESSED && hdr.word_1.w0[15:8] != OP_SUM) {
            meta.step = COMBINE;
        }
    }
    action disagree() {
        meta.slot.flags = meta.slot.flags | MIXED;
        meta.step = 0;
    }

    // A result from the switch above. Where the root is behind this switch, the row has data that did not go up: they
    // are combined with those of the result, as the root itself does with its own.
    action take_result() {
        keep_words();
        if (hdr.switchml.ahead != ADDRESSED || kept[249:248] == REACH_ALL ||
            meta.job.everybody & (32w1 << kept[247:240]) == 0 || meta.slot.flags & MIXED != 0) {
            had_data = 0;
        }
        if (meta.has_data == 0) {
            meta.step = had_data == 1 ? FETCH : 3w0;
        } else if (had_data == 1) {
            meta.step = hdr.word_1.w0[15:8] == OP_SUM ? ADD : COMBINE;
        }
        meta.slot.ahead = (meta.has_data | had_data) ++ hdr.switchml.ahead[6:0];
        meta.slot.kind = meta.slot.kind | KIND_RESULT;
    }
    action flags_of_partial() {
        meta.slot.flags = meta.slot.flags | (meta.flags_below & (OVERFLOW | MIXED));
    }

    // After the rules, before the sums.
    apply {
        had_data = meta.slot.before_ahead[7:7];
        if (meta.outcome == CONSUMED || meta.outcome == COMPLETED) {
            flags_of_partial();
        }
        if (meta.job.tree == FROM_ABOVE) {
            if (meta.outcome == COMPLETED) {
                take_result();
            }
        } else if (meta.step == STORE) { // a new round, which this packet opens
            if (meta.has_words == 1) {
                keep_words();
                meta.slot.ahead = meta.has_data ++ hdr.switchml.ahead[6:0];
                if (meta.has_data == 0) {
                    meta.step = 0;
                }
            }
        } else if (meta.slot.kind & KIND_RESULT != 0 &&
                   (meta.outcome == CONSUMED || meta.outcome == COMPLETED || meta.outcome == ANSWERED ||
                    meta.outcome == PASSED_UP)) {
            meta.slot.ahead = meta.slot.before_ahead;
            if (meta.outcome == ANSWERED || meta.outcome == PASSED_UP) {
                meta.step = 0;
            } else {
                compare();
                if (is_alike == 1) {
                    keep_least();
                    join_round();
                } else {
                    disagree();
                }
            }
            // What leaves needs lanes that are not the packet's.
            if (meta.step == 0 && had_data == 1 && meta.outcome != CONSUMED) {
                meta.step = FETCH;
            }
        }

        if (meta.outcome == WAITED) {
            no_words();
        } else if (meta.outcome == COMPLETED || meta.outcome == ANSWERED || meta.outcome == PASSED_UP) {
            if (meta.slot.kind & KIND_RESULT == 0) {
                be_dense();
                put_data();
            } else {
                put_words();
                if (meta.slot.ahead[7:7] == 1) {
                    put_data();
                } else {
                    no_data();
                    if (meta.job.tree & HAS_ABOVE != 0 && meta.outcome != ANSWERED && meta.size == SIZE_1024) {
                        put_padding(hdr);
                    }
                }
            }
        }
    }
}
