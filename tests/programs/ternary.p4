// SPDX-License-Identifier: Apache-2.0
// Ternary match: priorities, ties, an odd width, and constant entries with priorities of their own.
#include "ethernet.p4"

header flow_t {
    bit<32> a;
    bit<13> b;
    bit<3>  colour;
    bit<8>  rule;
}

struct headers_t {
    ethernet_t eth;
    flow_t     flow;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.flow);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action drop() {
        mark_to_drop(sm);
    }
    action rule(bit<8> number) {
        hdr.flow.rule = number;
    }
    action colour(bit<3> value) {
        hdr.flow.colour = value;
    }

    table rules {
        key = {
            hdr.flow.a: ternary;
            hdr.flow.b: ternary;
        }
        actions = { rule; drop; NoAction; }
        size = 64;
        default_action = NoAction();
    }
    table colours {
        key = { hdr.eth.type: ternary; }
        actions = { colour; NoAction; }
        const entries = {
            0x0800 &&& 0xff00: colour(1);
            0x0801 &&& 0x00ff: colour(2);
            0x0800 &&& 0x0f00: colour(3);
            _: colour(4);
        }
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        colours.apply();
        rules.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
