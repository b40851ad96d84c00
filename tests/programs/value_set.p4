// SPDX-License-Identifier: Apache-2.0
// A parser value set: types that the control plane calls interesting are parsed further.
#include "ethernet.p4"

header extra_t {
    bit<16> value;
}

struct headers_t {
    ethernet_t eth;
    extra_t    extra;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    value_set<bit<16>>(4) interesting;

    state start {
        packet.extract(hdr.eth);
        transition select(hdr.eth.type) {
            interesting: extra;
            0x0800: extra;
            default: accept;
        }
    }
    state extra {
        packet.extract(hdr.extra);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.extra.isValid()) {
            hdr.extra.value = 0x1234;
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
