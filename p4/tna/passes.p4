// The way of a packet through the switch. Its first pass, in the pipe that it came to, decides what becomes of it; each
// further one sees 64 lanes. The block of lanes b is in pipe (b + 1) mod 4, so packets of 256 bytes need pipe 1 alone:
//
//     place            0   1   2   3   4   5   6   7   8   9   10  11
//     pipe                 1   2   3   0   0   3   3   2   2   1   1
//     takes off        --  L+R L+R L+R L+R
//     puts in front                    (R) L   R   L   R   L   R   L
//     256 bytes        0 ─ 1 ─────────────────────────────────────  11
//
// A consumed packet ends where its last lanes are taken off; of the others, that pass keeps the right half of its block.
// All packets of a row take the same ports, and so never overtake each other.

control Passes(inout packet_t hdr, inout known_t known,
               inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr, inout ingress_intrinsic_metadata_for_tm_t ig_tm) {
    action go(bit<8> place, bit<8> pipe) {
        hdr.pass.place = place;
        known.pipe = pipe;
        ig_tm.bypass_egress = 1;
    }
    action start() {
        go(1, 1);
    }
    action onward(bit<8> place, bit<8> pipe) {
        hdr.left.setInvalid();
        hdr.right.setInvalid();
        go(place, pipe);
    }
    action turn(bit<8> place, bit<8> pipe) { // the last lanes are taken off, and the right half of their sums is there
        hdr.left.setInvalid();
        hdr.pass.step = FETCH_LEFT;
        go(place, pipe);
    }
    action after_right(bit<8> place, bit<8> pipe) {
        hdr.pass.step = FETCH_LEFT;
        go(place, pipe);
    }
    action after_left(bit<8> place, bit<8> pipe) {
        hdr.pass.step = (bit<8>)FETCH;
        go(place, pipe);
    }
    action end() {
        ig_dprsr.drop_ctl = 1;
    }
    action to_group() {
        ig_tm.mcast_grp_a = hdr.pass.group;
        ig_tm.level1_exclusion_id = 0xffff; // nobody
    }
    action to_sender() {
        ig_tm.ucast_egress_port = hdr.pass.port;
    }
    action wait_to_sender() {
        ig_tm.ucast_egress_port = hdr.pass.port;
    }

    table passes {
        key = {
            hdr.pass.place : exact;
            hdr.switchml.size : ternary;
            hdr.pass.outcome : ternary;
        }
        actions = { start; onward; turn; after_right; after_left; end; to_group; to_sender; wait_to_sender; }
        const entries = {
            (0, _, (bit<8>)WAITED): wait_to_sender();
            (0, _, (bit<8>)CONSUMED): start();
            (0, _, (bit<8>)COMPLETED): start();
            (0, _, (bit<8>)ANSWERED): start();
            (1, SIZE_256, (bit<8>)CONSUMED): end();
            (1, SIZE_256, _): turn(11, 1);
            (1, _, _): onward(2, 2);
            (2, _, _): onward(3, 3);
            (3, _, _): onward(4, 0);
            (4, _, (bit<8>)CONSUMED): end();
            (4, _, _): turn(5, 0);
            (5, _, _): after_left(6, 3);
            (6, _, _): after_right(7, 3);
            (7, _, _): after_left(8, 2);
            (8, _, _): after_right(9, 2);
            (9, _, _): after_left(10, 1);
            (10, _, _): after_right(11, 1);
            (11, _, (bit<8>)COMPLETED): to_group();
            (11, _, _): to_sender();
        }
        const default_action = end();
        size = 32;
    }

    // Ports in loopback that lead to a pipe, for the control plane to choose.
    action through(PortId_t port) {
        ig_tm.ucast_egress_port = port;
    }
    table loopbacks {
        key = {
            known.pipe : exact;
            hdr.pass.row[3:0] : exact @name("row");
        }
        actions = { through; @defaultonly end; }
        const default_action = end();
        size = 64;
    }

    apply {
        passes.apply();
        if (known.pipe != NO_PIPE) {
            loopbacks.apply();
        }
    }
}
