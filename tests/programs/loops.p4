// SPDX-License-Identifier: Apache-2.0
// Loops in an action: `for` with break and continue, compiled to jumps, over a header stack's lanes.
#include "ethernet.p4"

header count_t {
    bit<8>  n;
    bit<32> sum;
    bit<32> skipped;
}

struct headers_t {
    ethernet_t eth;
    count_t    count;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.count);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action add_up() {
        bit<32> sum = 0;
        bit<32> skipped = 0;
        for (bit<8> i = 0; i < hdr.count.n; i = i + 1) {
            if (i == 100) {
                break;
            }
            if (i[1:0] == 3) {
                skipped = skipped + 1;
                continue;
            }
            sum = sum + (bit<32>)i * (bit<32>)i;
        }
        hdr.count.sum = sum;
        hdr.count.skipped = skipped;
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        add_up();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
