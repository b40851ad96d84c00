// SPDX-License-Identifier: Apache-2.0
// Digests: fields of a new source address go to the control plane; the packet goes on.
#include "ethernet.p4"

struct learned_t {
    bit<48> address;
    bit<9>  port;
}

struct headers_t {
    ethernet_t eth;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action learn() {
        digest<learned_t>(1, { hdr.eth.src, sm.ingress_port });
        hdr.eth.type = 0x1ea4;
    }

    table known {
        key = { hdr.eth.src: exact; }
        actions = { learn; NoAction; }
        size = 64;
        default_action = learn();
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        known.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
