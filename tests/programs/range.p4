// SPDX-License-Identifier: Apache-2.0
// Range match: on 16 and on 12 bits, alone and together with an exact key.
#include "ethernet.p4"

header ports_t {
    bit<16> source;
    bit<12> length;
    bit<4>  class;
}

struct headers_t {
    ethernet_t eth;
    ports_t    ports;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.ports);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action send(bit<9> port) {
        sm.egress_spec = port;
    }
    action classify(bit<4> class) {
        hdr.ports.class = class;
    }

    table by_port {
        key = {
            hdr.eth.type: exact;
            hdr.ports.source: range;
        }
        actions = { send; NoAction; }
        size = 64;
        default_action = NoAction();
    }
    table by_length {
        key = { hdr.ports.length: range; }
        actions = { classify; NoAction; }
        const entries = {
            12w0 .. 12w63: classify(1);
            12w64 .. 12w1499: classify(2);
            12w1400 .. 12w4095: classify(3);
        }
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        by_port.apply();
        by_length.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
