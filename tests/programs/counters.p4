// SPDX-License-Identifier: Apache-2.0
// Counters: direct on a table (each hit counts), and an indexed array; an index out of range counts nothing.
#include "ethernet.p4"

header flow_t {
    bit<16> id;
    bit<16> index;
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
    direct_counter(CounterType.packets_and_bytes) hits;
    counter(32, CounterType.packets_and_bytes) by_index;
    counter(32, CounterType.bytes) by_port;

    action send(bit<9> port) {
        sm.egress_spec = port;
        hits.count();
    }
    action drop() {
        mark_to_drop(sm);
        hits.count();
    }

    table flows {
        key = { hdr.flow.id: exact; }
        actions = { send; drop; }
        size = 64;
        counters = hits;
        default_action = drop();
    }

    apply {
        by_index.count((bit<32>)hdr.flow.index);
        flows.apply();
        by_port.count((bit<32>)sm.egress_spec);
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
