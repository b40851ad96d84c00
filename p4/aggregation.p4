// Aggregation: who sent a packet, what it does to its slot, and what leaves for it. All of it happens in ingress, which
// is one thread in simple_switch, so that nothing comes between reading a slot and writing it.

// The larger of two signed numbers of 8 bits.
#define MAX_SIGNED(a, b) ((a ^ 8w0x80) > (b ^ 8w0x80) ? a : b)

// 32 cells a worker, for what came of its packets, and in egress of the copies for it.
@name(".outcomes") counter(32w32 * WORKERS, CounterType.packets_and_bytes) outcomes;

#include "rule_v1.p4"
#include "rule_v2.p4"
#include "tree.p4"
#include "sums.p4"
#include "sparse.p4"
#include "deadline.p4"

control Aggregation(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    @name(".rounds") register<bit<64>>(ROWS) rounds; // epoch, missing
    @name(".marks") register<bit<64>>(ROWS) marks;  // generation, need, ahead, used, kind, flags

    RuleV1() rule_v1;
    RuleV2() rule_v2;
    RuleBelow() rule_below;
    RuleAbove() rule_above;
    Sums() sums;
    SparseFormat() sparse_format;
    Sparse() sparse;
    Deadline() deadline;

    bit<1> is_retransmission;

    @name(".v2_worker")
    action v2_worker(bit<16> worker, bit<16> first, bit<32> me, bit<32> everybody, bit<32> generation,
                     bit<32> base, bit<32> slots, bit<32> origin, bit<16> tag, bit<4> kind, bit<3> size, bit<16> group) {
        meta.job.worker = worker;
        meta.job.first = first;
        meta.job.me = me;
        meta.job.everybody = everybody;
        meta.job.generation = generation;
        meta.job.base = base;
        meta.job.slots = slots;
        meta.job.origin = origin;
        meta.job.tag = tag;
        meta.job.kind = kind;
        meta.job.size = size;
        meta.job.group = group;
    }
    @name(".v1_worker")
    action v1_worker(bit<16> worker, bit<32> me, bit<32> others, bit<32> generation, bit<32> base,
                     bit<32> slots, bit<16> group) {
        meta.job.is_v1 = 1;
        meta.job.worker = worker;
        meta.job.me = me;
        meta.job.others = others;
        meta.job.generation = generation;
        meta.job.base = base;
        meta.job.slots = slots;
        meta.job.group = group;
    }
    @name(".tree_worker")
    action tree_worker(bit<3> tree, bit<16> worker, bit<16> first, bit<32> me, bit<32> everybody, bit<32> generation,
                       bit<32> base, bit<32> slots, bit<32> origin, bit<16> tag, bit<4> kind, bit<3> size, bit<16> group) {
        meta.job.tree = tree;
        v2_worker(worker, first, me, everybody, generation, base, slots, origin, tag, kind, size, group);
    }
    // A job whose rounds may end without ranks that are late. An expiry has the form of a contribution of the job's kind,
    // and passes for one until its slot is known.
    @name(".deadline_worker")
    action deadline_worker(bit<16> worker, bit<16> first, bit<32> me, bit<32> everybody, bit<32> generation,
                           bit<32> base, bit<32> slots, bit<32> origin, bit<16> tag, bit<4> kind, bit<3> size,
                           bit<16> group) {
        v2_worker(worker, first, me, everybody, generation, base, slots, origin, tag, kind, size, group);
        meta.job.has_deadline = 1;
        if (meta.has_words == 0 && hdr.switchml.kind == KIND_EXPIRY) {
            meta.is_expiry = 1;
            hdr.switchml.kind = kind;
        }
    }
    action stranger() {}

    @name(".workers") table workers {
        key = {
            hdr.ipv4.src : exact;
            hdr.udp.src : exact;
            hdr.udp.dst : exact;
        }
        actions = { v2_worker; tree_worker; deadline_worker; @defaultonly stranger; }
        const default_action = stranger();
        size = WORKERS;
    }
    @name(".workers_v1") table workers_v1 {
        key = { hdr.ipv4.src : exact; } // all of the ports in PORTS
        actions = { v1_worker; @defaultonly stranger; }
        const default_action = stranger();
        size = WORKERS;
    }

    // Other switches of a job's tree. All its packets between two switches have one address, so the tag tells jobs apart.
    @name(".switches") table switches {
        key = {
            hdr.ipv4.src : exact;
            hdr.udp.dst : exact;
            hdr.switchml.tag : exact;
        }
        actions = { tree_worker; @defaultonly stranger; }
        const default_action = stranger();
        size = WORKERS;
    }

    action find_slot_v1() {
        bit<32> place = (bit<32>)(hdr.switchml.tag & 0x3fff);
        bit<32> version = hdr.switchml.tag[15:15] == 1 ? meta.job.slots : 0;
        meta.slot.row = meta.job.base + version + place;
        meta.slot.other_row = meta.job.base + (meta.job.slots - version) + place;
    }
    action find_slot_v2() {
        bit<32> mask = (meta.job.slots << 1) - 1;
        bit<32> since = hdr.switchml.seq - meta.job.origin;
        bit<32> place = since & mask; // version times S, plus the slot
        meta.slot.row = meta.job.base + place;
        meta.slot.other_row = meta.job.base + (place ^ meta.job.slots);
        meta.slot.packet_epoch = since & ~mask;
        meta.slot.packet_before = (since - meta.job.slots) & ~mask;
    }
    action read_slot() {
        bit<64> round;
        bit<64> mark;
        rounds.read(round, meta.slot.row);
        meta.slot.epoch = round[63:32];
        meta.slot.missing = round[31:0];
        rounds.read(round, meta.slot.other_row);
        meta.slot.other_epoch = round[63:32];
        meta.slot.other_missing = round[31:0];
        marks.read(mark, meta.slot.other_row);
        meta.slot.other_generation = mark[63:32];
        marks.read(mark, meta.slot.row);
        meta.slot.generation = mark[63:32];
        meta.slot.need = mark[31:24];
        meta.slot.ahead = mark[23:16];
        meta.slot.used = mark[15:8];
        meta.slot.kind = mark[7:4];
        meta.slot.before_ahead = mark[23:16];
        meta.slot.flags = mark[3:0];
    }
    // What an earlier job left in a row counts as zeros.
    action forget_slot() {
        meta.slot.epoch = 0;
        meta.slot.missing = 0;
        meta.slot.kind = 0;
    }
    action forget_other() {
        meta.slot.other_epoch = 0;
        meta.slot.other_missing = 0;
    }
    action write_slot() {
        rounds.write(meta.slot.row, meta.slot.epoch ++ meta.slot.missing);
        marks.write(meta.slot.row, meta.job.generation ++
            meta.slot.need ++ meta.slot.ahead ++ meta.slot.used ++ meta.slot.kind ++ meta.slot.flags);
    }
    action write_other() {
        rounds.write(meta.slot.other_row, meta.slot.other_epoch ++ meta.slot.other_missing);
    }

    // What leaves: the packet itself with its lanes replaced, from the switch to whoever sent it. For a multicast,
    // egress puts each receiver's address in.
    action turn_around() {
        bit<16> port = hdr.udp.src;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.mac;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = meta.target;
        hdr.ipv4.tos = 0;
        hdr.ipv4.length = hdr.udp.length + 20;
        hdr.ipv4.id = 0;
        hdr.ipv4.flags = 0;
        hdr.ipv4.ttl = 64;
        hdr.udp.src = hdr.udp.dst;
        hdr.udp.dst = port;
        hdr.udp.checksum = 0;
        meta.is_rewritten = 1;
    }
    action label_v1() {
        hdr.switchml.r = 0;
        hdr.switchml.tag = hdr.switchml.tag & 0xbfff;
        hdr.switchml.need = meta.slot.need;
        hdr.switchml.used = meta.slot.used;
    }
    action label_v2() {
        hdr.switchml.kind = meta.slot.kind | KIND_RESULT;
        hdr.switchml.r = meta.outcome == ANSWERED ? 1w1 : 0;
        hdr.switchml.ahead = meta.slot.ahead;
        hdr.switchml.need = meta.slot.need;
        hdr.switchml.used = (bit<8>)(meta.slot.flags & (OVERFLOW | MIXED | ENDED_EARLY)) | meta.late;
    }
    action label_words() {
        hdr.switchml.ahead = hdr.switchml.ahead & 0x7f;
        if (hdr.switchml.ahead != ADDRESSED) {
            hdr.switchml.need = 0;
        }
    }
    action label_partial() {
        hdr.switchml.kind = meta.slot.kind;
        hdr.switchml.r = meta.outcome == PASSED_UP ? 1w1 : 0;
        hdr.switchml.size = hdr.switchml.size | SIZE_PARTIAL;
        hdr.switchml.ahead = meta.slot.ahead;
        hdr.switchml.need = meta.slot.need;
        hdr.switchml.used = meta.slot.used;
        hdr.partial.setValid();
        hdr.partial.flags = (bit<8>)(meta.slot.flags & (OVERFLOW | MIXED));
        hdr.partial.unused = 0;
        hdr.udp.length = hdr.udp.length + LENGTH_PARTIAL;
        hdr.ipv4.length = hdr.udp.length + 20;
    }
    action label_words_partial() {
        hdr.switchml.kind = meta.slot.kind & ~KIND_RESULT;
        hdr.switchml.r = meta.outcome == PASSED_UP ? 1w1 : 0;
        hdr.switchml.ahead = (meta.slot.ahead & 0x0f) | PARTIAL | (bit<8>)(meta.slot.flags & (OVERFLOW | MIXED)) << 4;
        hdr.switchml.need = (meta.slot.ahead & 0x0f) == ADDRESSED ? meta.slot.need : 0;
        hdr.switchml.used = meta.slot.used;
    }
    action strip_partial() {
        hdr.partial.setInvalid();
        hdr.switchml.size = hdr.switchml.size & 3;
        hdr.udp.length = hdr.udp.length - LENGTH_PARTIAL;
    }
    action become_wait() {
        hdr.switchml.kind = KIND_WAIT;
        hdr.switchml.r = 0;
        hdr.switchml.size = 0;
        hdr.switchml.ahead = 0;
        hdr.switchml.need = 0;
        hdr.switchml.used = 0;
        hdr.first.setInvalid();
#ifdef REST_WORDS
        hdr.rest.setInvalid();
#endif
        hdr.missing.setValid();
        hdr.missing.ranks_0 = meta.slot.missing[7:0];
        hdr.missing.ranks_8 = meta.slot.missing[15:8];
        hdr.missing.ranks_16 = meta.slot.missing[23:16];
        hdr.missing.ranks_24 = meta.slot.missing[31:24];
        hdr.missing.no_ranks = 0;
        hdr.udp.length = LENGTH_WAIT;
        hdr.ipv4.length = LENGTH_WAIT + 20;
    }
    action to_group() {
        sm.mcast_grp = meta.job.group;
    }
    action to_all() {
        to_group();
        if (meta.job.is_v1 == 0) {
            meta.outcome = COMPLETED + (meta.slot.flags & (OVERFLOW | MIXED));
        }
    }
    action to_sender() {
        sm.egress_spec = sm.ingress_port;
    }

    action count() {
        outcomes.count((bit<32>)(meta.job.worker ++ is_retransmission ++ meta.outcome));
    }

    apply {
        mark_to_drop(sm);
        is_retransmission = 0;
        if (!workers.apply().hit) {
            if (!workers_v1.apply().hit && hdr.switchml.isValid()) {
                switches.apply();
            }
        }
        if (meta.job.worker == 0) { // cell 0: packets from nobody who joined
            outcomes.count(0);
            return;
        }

        if (meta.has_words == 1) {
            sparse_format.apply(hdr, meta);
        }
        // A packet that nothing is wrong with has the outcome 0, CONSUMED, until its slot is known.
        if (meta.job.tree == FROM_ABOVE) {
            if ((meta.size == meta.job.size && hdr.switchml.size == meta.size &&
                 (hdr.switchml.kind == meta.job.kind | KIND_RESULT || hdr.switchml.kind == KIND_INT32 | KIND_RESULT)) ||
                (hdr.missing.isValid() && hdr.switchml.kind == KIND_WAIT)) {
                is_retransmission = hdr.switchml.r;
                find_slot_v2();
            } else {
                meta.outcome = REFUSED_FORMAT;
            }
        } else if (meta.size == 0 || hdr.switchml.size != meta.size) {
            meta.outcome = REFUSED_FORMAT;
        } else if (meta.job.is_v1 == 1) {
            if (hdr.switchml.kind != KIND_V1) {
                meta.outcome = REFUSED_FORMAT;
            } else if ((bit<32>)(hdr.switchml.tag & 0x3fff) >= meta.job.slots) {
                meta.outcome = REFUSED_WINDOW;
            } else {
                find_slot_v1();
            }
        } else if (meta.size != meta.job.size ||
                   (hdr.switchml.kind != meta.job.kind && hdr.switchml.kind != KIND_INT32)) {
            meta.outcome = REFUSED_FORMAT;
        } else if (hdr.switchml.tag != meta.job.tag) {
            meta.outcome = REFUSED_TAG;
        } else {
            is_retransmission = hdr.switchml.r;
            find_slot_v2();
        }

        if (meta.outcome == CONSUMED) {
            read_slot();
            if (meta.slot.generation != meta.job.generation) {
                forget_slot();
            }
            if (meta.slot.other_generation != meta.job.generation) {
                forget_other();
            }
            if (meta.job.is_v1 == 1) {
                rule_v1.apply(hdr, meta);
                write_other();
            } else if (meta.job.tree == FROM_ABOVE) {
                rule_above.apply(hdr, meta);
                if (meta.has_words == 1) {
                    sparse.apply(hdr, meta);
                }
            } else {
                if (meta.has_words == 1) {
                    hdr.switchml.kind = hdr.switchml.kind | KIND_RESULT;
                }
                if (meta.is_expiry == 0) {
                    rule_v2.apply(hdr, meta);
                }
                if (meta.job.tree != 0) {
                    rule_below.apply(hdr, meta);
                }
                if (meta.job.has_deadline == 1) {
                    deadline.apply(meta);
                }
                if (meta.has_words == 1 || meta.slot.kind & KIND_RESULT != 0) {
                    sparse.apply(hdr, meta);
                }
            }
            sums.apply(hdr, meta);
            if (meta.outcome == CONSUMED || meta.outcome == COMPLETED) {
                write_slot();
            }
            if (meta.outcome == COMPLETED || meta.outcome == ANSWERED || meta.outcome == WAITED ||
                meta.outcome == PASSED_UP) {
                if (hdr.partial.isValid()) {
                    strip_partial();
                }
                turn_around();
                if (meta.outcome == WAITED) {
                    if (meta.job.tree != FROM_ABOVE) {
                        become_wait();
                    }
                } else if (meta.job.tree & HAS_ABOVE != 0 && meta.outcome != ANSWERED) {
                    if (meta.slot.kind & KIND_RESULT != 0) {
                        label_words_partial();
                    } else {
                        label_partial();
                    }
                } else if (meta.job.is_v1 == 1) {
                    label_v1();
                } else {
                    label_v2();
                    if (meta.slot.kind & KIND_RESULT != 0) {
                        label_words();
                    }
                }
                if (meta.outcome == COMPLETED) {
                    to_all();
                } else if (meta.outcome == PASSED_UP || meta.job.tree == FROM_ABOVE) {
                    to_group();
                } else {
                    to_sender();
                }
            }
        }
        count();
    }
}
