// SPDX-License-Identifier: Apache-2.0
// log_msg: plain text, and text with values in it.
#include "ethernet.p4"

struct headers_t {
    ethernet_t eth;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        log_msg("parsed type {}", { hdr.eth.type });
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        log_msg("in ingress");
        log_msg("port {} type {} sum {}", { sm.ingress_port, hdr.eth.type, hdr.eth.type + 1 });
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
