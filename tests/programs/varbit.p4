// SPDX-License-Identifier: Apache-2.0
// Variable-length fields: extract with a length, a length that is too long or no whole byte, copying one header to another.
#include "ethernet.p4"

header fixed_t {
    bit<8> bits;
}

header options_t {
    bit<8>      kind;
    varbit<128> data;
}

struct headers_t {
    ethernet_t eth;
    fixed_t    fixed;
    options_t  options;
    options_t  copy;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.fixed);
        packet.extract(hdr.options, (bit<32>)hdr.fixed.bits);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (sm.parser_error != error.NoError) {
            hdr.eth.type = 0xffff;
        }
        if (hdr.options.isValid()) {
            if (hdr.options.kind == 2) {
                hdr.copy = hdr.options;
                hdr.copy.kind = 3;
            } else if (hdr.options.kind == 4) {
                hdr.options.setInvalid();
            }
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
