// SPDX-License-Identifier: Apache-2.0
// Optional match: a field is matched whole or not at all.
#include "ethernet.p4"

header pair_t {
    bit<16> left;
    bit<16> right;
    bit<16> found;
}

struct headers_t {
    ethernet_t eth;
    pair_t     pair;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.pair);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action found(bit<16> number) {
        hdr.pair.found = number;
    }

    table pairs {
        key = {
            hdr.pair.left: optional;
            hdr.pair.right: optional;
        }
        actions = { found; NoAction; }
        size = 64;
        default_action = NoAction();
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        pairs.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
