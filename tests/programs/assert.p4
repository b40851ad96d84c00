// SPDX-License-Identifier: Apache-2.0
// assert and assume: a packet of type 0xdead breaks the one, 0xbeef the other. BMv2 ends there with abort().
#include "ethernet.p4"

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
    apply {
        sm.egress_spec = sm.ingress_port;
        assert(hdr.eth.type != 0xdead);
        assume(hdr.eth.type != 0xbeef);
        hdr.eth.type = 0x600d;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
