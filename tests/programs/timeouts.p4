// SPDX-License-Identifier: Apache-2.0
// A table whose entries age: the control plane is told of entries that nobody hit for their time.
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
    action send(bit<9> port) {
        sm.egress_spec = port;
    }
    action drop() {
        mark_to_drop(sm);
    }

    table stations {
        key = { hdr.eth.dst: exact; }
        actions = { send; drop; }
        size = 64;
        support_timeout = true;
        default_action = drop();
    }

    apply {
        stations.apply();
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
