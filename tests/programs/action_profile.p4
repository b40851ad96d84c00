// SPDX-License-Identifier: Apache-2.0
// Action profile: entries point to members, and several entries may share one.
#include "ethernet.p4"

header flow_t {
    bit<16> id;
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

    action_profile(16) members;
    table flows {
        key = { hdr.flow.id: exact; }
        actions = { send; drop; NoAction; }
        size = 64;
        implementation = members;
        default_action = drop();
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        flows.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
