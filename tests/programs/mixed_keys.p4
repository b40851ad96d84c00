// SPDX-License-Identifier: Apache-2.0
// One table with several kinds of key: header validity, a computed key, a slice, a masked field, ternary and range.
// A key of a header that was not parsed reads as zero.
#include "ethernet.p4"

header tag_t {
    bit<16> id;
    bit<16> type;
}

header body_t {
    bit<16> a;
    bit<16> b;
    bit<16> rule;
}

struct headers_t {
    ethernet_t eth;
    tag_t      tag;
    body_t     body;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        transition select(hdr.eth.type) {
            0x8100: tagged;
            default: body;
        }
    }
    state tagged {
        packet.extract(hdr.tag);
        transition body;
    }
    state body {
        packet.extract(hdr.body);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action rule(bit<16> number) {
        hdr.body.rule = number;
    }

    table rules {
        key = {
            hdr.tag.isValid(): exact;
            hdr.tag.id & 0x0fff: exact @name("vlan");
            hdr.eth.dst[15:0]: exact @name("low");
            hdr.body.a + hdr.body.b: ternary @name("sum");
            hdr.body.b: range;
        }
        actions = { rule; NoAction; }
        size = 64;
        default_action = NoAction();
    }
    table zero {
        key = {
            hdr.tag.id: lpm;
            hdr.tag.isValid(): exact;
        }
        actions = { rule; NoAction; }
        size = 64;
        default_action = NoAction();
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        if (!rules.apply().hit) {
            zero.apply();
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
