// What a packet of protocol 1 does to its slot: docs/protocol.md, section 1. The control plane zeroes a job's rows
// before it adds the job's entries.

#define CONTRIBUTION KIND_V1

struct versions_t {
    bit<32> first;
    bit<32> second;
}

control Rule(inout packet_t hdr, inout known_t known) {
    Register<versions_t, bit<16>>(ROWS / 2) bitmaps; // by slot: who has contributed, for each version
    Register<bit<32>, bit<16>>(ROWS) counts;
    Maximum() e0;
    Maximum() e1;

    bit<32> me;
    bit<32> others; // how many
    bit<16> pair;   // of the slot in `bitmaps`
    bit<16> base;
    bit<16> slot;
    bit<16> beyond;
    bit<32> before; // the bitmap as it was
    bit<32> was_there;
    bit<32> count;
    bit<8>  step;

    action v1_worker(bit<16> cell, bit<32> me_, bit<32> others_, bit<16> pairs, bit<16> rows, bit<16> no_slot,
                     bit<16> group) {
        me = me_;
        others = others_;
        slot = hdr.switchml.tag & 0x3fff;
        beyond = hdr.switchml.tag & no_slot;
        pair = pairs;
        base = rows;
        known.cell = cell;
        known.is_summed = 1;
        hdr.pass.setValid();
        hdr.pass.place = 0;
        hdr.pass.step = 0;
        hdr.pass.group = group;
    }
    action stranger() {}
    table workers_v1 {
        key = {
            hdr.ipv4.src : exact;
            hdr.switchml.tag[15:15] : exact @name("version");
        }
        actions = { v1_worker; @defaultonly stranger; }
        const default_action = stranger();
        size = 2 * WORKERS;
    }

    action find_slot() {
        hdr.pass.row = base + slot;
        pair = pair + slot;
    }

    RegisterAction<versions_t, bit<16>, bit<32>>(bitmaps) enter_first = {
        void apply(inout versions_t versions, out bit<32> old) {
            old = versions.first;
            versions.first = versions.first | me;
            versions.second = versions.second & ~me;
        }
    };
    RegisterAction<versions_t, bit<16>, bit<32>>(bitmaps) enter_second = {
        void apply(inout versions_t versions, out bit<32> old) {
            old = versions.second;
            versions.second = versions.second | me;
            versions.first = versions.first & ~me;
        }
    };
    action in_first() {
        before = enter_first.execute(pair);
    }
    action in_second() {
        before = enter_second.execute(pair);
    }
    table versions {
        key = { hdr.switchml.tag[15:15] : exact @name("version"); }
        actions = { in_first; in_second; }
        const entries = {
            0: in_first();
            1: in_second();
        }
        size = 2;
    }
    action look() {
        was_there = before & me;
    }

    RegisterAction<bit<32>, bit<16>, bit<32>>(counts) count_down = {
        void apply(inout bit<32> left, out bit<32> result) {
            if (left == 0) {
                left = others;
            } else {
                left = left - 1;
            }
            result = left;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(counts) count_up_to_now = {
        void apply(inout bit<32> left, out bit<32> result) {
            result = left;
        }
    };
    action count_me() {
        count = count_down.execute(hdr.pass.row);
    }
    action count_nobody() {
        count = count_up_to_now.execute(hdr.pass.row);
    }

    action decide(bit<8> outcome, bit<8> step_) {
        hdr.pass.outcome = outcome;
        hdr.pass.step = step_;
        step = step_;
        known.cell[3:0] = outcome[3:0];
    }
    action refuse(bit<8> outcome) {
        hdr.pass.outcome = outcome;
        known.cell[3:0] = outcome[3:0];
    }
    table outcomes {
        key = {
            before : ternary;
            was_there : ternary;
            count : ternary;
        }
        actions = { decide; refuse; }
        const entries = {
            (0, _, 0): decide((bit<8>)COMPLETED, (bit<8>)STORE);
            (0, _, _): decide((bit<8>)CONSUMED, (bit<8>)STORE);
            (_, 0, 0): decide((bit<8>)COMPLETED, (bit<8>)ADD);
            (_, 0, _): decide((bit<8>)CONSUMED, (bit<8>)ADD);
            (_, _, 0): decide((bit<8>)ANSWERED, (bit<8>)FETCH);
        }
        const default_action = refuse((bit<8>)DUPLICATE);
        size = 8;
    }

    action label() {
        hdr.switchml.r = 0;
        hdr.switchml.tag = hdr.switchml.tag & 0xbfff;
    }

    apply {
        step = 0;
        if (workers_v1.apply().hit) {
            if (known.is_well_formed == 0) {
                refuse((bit<8>)REFUSED_FORMAT);
            } else if (beyond != 0) {
                refuse((bit<8>)REFUSED_WINDOW);
            } else {
                find_slot();
                versions.apply();
                look();
                if (was_there == 0) {
                    count_me();
                } else {
                    count_nobody();
                }
                outcomes.apply();
                e0.apply(hdr.switchml.need, step, hdr.pass.row);
                e1.apply(hdr.switchml.used, step, hdr.pass.row);
                label();
            }
        }
    }
}
