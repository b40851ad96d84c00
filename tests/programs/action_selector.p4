// SPDX-License-Identifier: Apache-2.0
// Action selector: a group's member is chosen by a hash of fields that are no part of the match.
#include "ethernet.p4"

header flow_t {
    bit<16> id;
    bit<32> source;
    bit<32> target;
    bit<16> mark;
}

struct headers_t {
    ethernet_t eth;
    flow_t     flow;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.flow);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action drop() {
        mark_to_drop(sm);
    }
    action send(bit<9> port, bit<16> mark) {
        sm.egress_spec = port;
        hdr.flow.mark = mark;
    }

    action_selector(HashAlgorithm.crc16, 16, 14) spread;
    table paths {
        key = {
            hdr.flow.id: lpm;
            hdr.flow.source: selector;
            hdr.flow.target: selector;
        }
        actions = { send; drop; NoAction; }
        size = 64;
        implementation = spread;
        default_action = drop();
    }

    apply {
        paths.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
