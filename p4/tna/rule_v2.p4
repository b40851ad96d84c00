// What a packet of protocol 2 does to its slot: docs/protocol.md, section 3, for jobs of int32 lanes. ../rule_v2.p4 says
// what an epoch is. A register can be reached once in a pass, and an ALU compares its cell with what it is given, so the
// rule takes one register after the other: the epoch says of which round the packet is, then the bitmap what is missing.
//
// The control plane zeroes a job's rows before it adds the job's entries.

#define CONTRIBUTION KIND_INT32

struct used_t {
    bit<8> used;
    bit<8> flags;
}

control Rule(inout packet_t hdr, inout known_t known) {
    Register<bit<32>, bit<16>>(ROWS) epochs;
    Register<bit<32>, bit<16>>(ROWS) missing;
    Register<used_t, bit<16>>(ROWS) codes;
    Maximum() need;
    Maximum() ahead;

    bit<8>  job;
    bit<32> me;
    bit<32> others;
    bit<32> since;
    bit<16> since_low;
    bit<16> wrong_tag;
    bit<32> epoch;
    bit<32> epoch_before; // what the row has if this is the first packet of a round
    bit<32> found;
    bit<32> age;
    bit<32> age_before;
    bit<8>  is_first;
    bit<8>  is_other;
    bit<32> were_missing;
    bit<32> was_missing;
    bit<32> are_missing;
    bit<8>  step;

    action v2_worker(bit<16> cell, bit<32> me_, bit<32> others_, bit<8> job_, bit<32> minus_origin, bit<16> tag,
                     bit<16> group) {
        me = me_;
        others = others_;
        job = job_;
        since = hdr.switchml.seq + minus_origin;
        wrong_tag = hdr.switchml.tag ^ tag;
        known.cell = cell;
        known.is_summed = 1;
        hdr.pass.setValid();
        hdr.pass.place = 0;
        hdr.pass.step = 0;
        hdr.pass.group = group;
    }
    action stranger() {}
    table workers {
        key = {
            hdr.ipv4.src : exact;
            hdr.udp.src : exact;
            hdr.udp.dst : exact;
        }
        actions = { v2_worker; @defaultonly stranger; }
        const default_action = stranger();
        size = WORKERS;
    }

    // A word of 16 bits cannot take a part of one of 32 bits, except through the hash unit.
    Hash<bit<16>>(HashAlgorithm_t.IDENTITY) low_bits;
    action halve() {
        since_low = low_bits.get({since[15:0]});
    }

    // A job has 2S rows, from a base on.
    action find(bit<16> row_mask, bit<32> epoch_mask) { // 2S - 1, and all other bits
        hdr.pass.row = since_low & row_mask;
        epoch = since & epoch_mask;
    }
    action other_size() {
        known.is_well_formed = 0;
    }
    table jobs {
        key = {
            job : exact;
            hdr.switchml.size : exact;
        }
        actions = { find; @defaultonly other_size; }
        const default_action = other_size();
        size = 256;
    }
    action place(bit<16> base, bit<32> minus_round) { // -2S
        hdr.pass.row = hdr.pass.row + base;
        epoch_before = epoch + minus_round;
    }
    table bases {
        key = { job : exact; }
        actions = { place; }
        size = 256;
    }

    RegisterAction<bit<32>, bit<16>, bit<32>>(epochs) enter_round = {
        void apply(inout bit<32> current, out bit<32> old) {
            old = current;
            if (current == epoch_before) {
                current = epoch;
            }
        }
    };
    action enter() {
        found = enter_round.execute(hdr.pass.row);
    }
    action compare() {
        age = epoch - found;
        age_before = epoch_before - found;
    }

    RegisterAction<bit<32>, bit<16>, bit<32>>(missing) contribute = {
        void apply(inout bit<32> ranks, out bit<32> old) {
            old = ranks;
            ranks = ranks & ~me;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(missing) begin = {
        void apply(inout bit<32> ranks, out bit<32> now) {
            ranks = others;
            now = ranks;
        }
    };
    action same_round() {
        were_missing = contribute.execute(hdr.pass.row);
    }
    action next_round() {
        were_missing = begin.execute(hdr.pass.row);
        is_first = 1;
    }
    action refuse(bit<8> outcome) {
        is_other = 1;
        hdr.pass.outcome = outcome;
        known.cell[3:0] = outcome[3:0];
    }
    table rounds {
        key = {
            age : ternary;
            age_before : ternary;
        }
        actions = { same_round; next_round; refuse; }
        const entries = {
            (0, _): same_round();
            (_, 0): next_round();
            (0x80000000 &&& 0x80000000, _): refuse((bit<8>)STALE);
        }
        const default_action = refuse((bit<8>)REFUSED_WINDOW);
        size = 4;
    }
    action look() {
        was_missing = were_missing & me;
        are_missing = were_missing & ~me;
    }

    action answer(bit<8> outcome, bit<8> step_, bit<1> r) {
        hdr.pass.outcome = outcome;
        hdr.pass.step = step_;
        step = step_;
        hdr.switchml.kind = KIND_INT32 | KIND_RESULT;
        hdr.switchml.r = r;
        known.cell[3:0] = outcome[3:0];
    }
    action tell_missing() {
        hdr.pass.outcome = (bit<8>)WAITED;
        hdr.switchml.kind = KIND_WAIT;
        hdr.switchml.r = 0;
        hdr.switchml.size = 0;
        hdr.switchml.ahead = 0;
        hdr.switchml.need = 0;
        hdr.switchml.used = 0;
        hdr.missing.setValid();
        hdr.missing.ranks_0 = are_missing[7:0];
        hdr.missing.ranks_8 = are_missing[15:8];
        hdr.missing.ranks_16 = are_missing[23:16];
        hdr.missing.ranks_24 = are_missing[31:24];
        hdr.missing.no_ranks = 0;
        hdr.udp.length = LENGTH_WAIT;
        hdr.ipv4.length = LENGTH_WAIT + 20;
        known.cell[3:0] = WAITED;
    }
    table outcomes {
        key = {
            is_first : exact;
            was_missing : ternary;
            are_missing : ternary;
            hdr.switchml.r : ternary;
        }
        actions = { answer; tell_missing; refuse; }
        const entries = {
            (1, _, 0, _): answer((bit<8>)COMPLETED, (bit<8>)STORE, 0);
            (1, _, _, _): answer((bit<8>)CONSUMED, (bit<8>)STORE, 0);
            (0, 0, 0, _): answer((bit<8>)ANSWERED, (bit<8>)FETCH, 1);
            (0, 0, _, 1): tell_missing();
            (0, 0, _, 0): refuse((bit<8>)DUPLICATE);
            (0, _, 0, _): answer((bit<8>)COMPLETED, (bit<8>)ADD, 0);
            (0, _, _, _): answer((bit<8>)CONSUMED, (bit<8>)ADD, 0);
        }
        const default_action = refuse((bit<8>)DUPLICATE);
        size = 8;
    }

    RegisterAction<used_t, bit<16>, bit<8>>(codes) store_code = {
        void apply(inout used_t code, out bit<8> flags) {
            code.used = hdr.switchml.used;
            code.flags = 0;
            flags = code.flags;
        }
    };
    RegisterAction<used_t, bit<16>, bit<8>>(codes) add_code = {
        void apply(inout used_t code, out bit<8> flags) {
            if (code.used != hdr.switchml.used) {
                code.flags = (bit<8>)MIXED;
            }
            flags = code.flags;
        }
    };
    RegisterAction<used_t, bit<16>, bit<8>>(codes) fetch_code = {
        void apply(inout used_t code, out bit<8> flags) {
            flags = code.flags;
        }
    };
    action store_used() {
        hdr.switchml.used = store_code.execute(hdr.pass.row);
    }
    action add_used() {
        hdr.switchml.used = add_code.execute(hdr.pass.row);
    }
    action fetch_flags() {
        hdr.switchml.used = fetch_code.execute(hdr.pass.row);
    }
    table used {
        key = { step : exact; }
        actions = { store_used; add_used; fetch_flags; @defaultonly NoAction; }
        const entries = {
            (bit<8>)STORE: store_used();
            (bit<8>)ADD: add_used();
            (bit<8>)FETCH: fetch_flags();
        }
        const default_action = NoAction();
        size = 4;
    }

    apply {
        step = 0;
        is_first = 0;
        is_other = 0;
        if (workers.apply().hit) {
            if (hdr.switchml.r == 1) {
                known.cell[4:4] = 1;
            }
            halve();
            jobs.apply();
            if (known.is_well_formed == 0) {
                refuse((bit<8>)REFUSED_FORMAT);
            } else if (wrong_tag != 0) {
                refuse((bit<8>)REFUSED_TAG);
            } else {
                bases.apply();
                enter();
                compare();
                rounds.apply();
                look();
                if (is_other == 0) {
                    outcomes.apply();
                }
                need.apply(hdr.switchml.need, step, hdr.pass.row);
                ahead.apply(hdr.switchml.ahead, step, hdr.pass.row);
                used.apply();
            }
        }
    }
}
