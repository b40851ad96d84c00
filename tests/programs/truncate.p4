// SPDX-License-Identifier: Apache-2.0
// truncate: the packet that leaves is at most so many bytes, headers included.
#include "ethernet.p4"

header cut_t {
    bit<16> length;
    bit<16> seen;
}

struct headers_t {
    ethernet_t eth;
    cut_t      cut;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.cut);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.cut.length != 0) {
            truncate((bit<32>)hdr.cut.length);
        }
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.cut.seen = (bit<16>)sm.packet_length;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
