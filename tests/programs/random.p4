// SPDX-License-Identifier: Apache-2.0
// random: uniform in a closed range, both ends of which the packet gives.
#include "ethernet.p4"

header draw_t {
    bit<16> low;
    bit<16> high;
    bit<16> drawn;
}

struct headers_t {
    ethernet_t eth;
    draw_t     draw;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.draw);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.draw.low <= hdr.draw.high) {
            random(hdr.draw.drawn, hdr.draw.low, hdr.draw.high);
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
