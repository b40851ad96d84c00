// SPDX-License-Identifier: Apache-2.0
// Meters: an indexed array that counts packets and a direct one that counts bytes; the colours go out in the packet.
// A meter without rates is green, an index out of range leaves the colour alone.
#include "ethernet.p4"

header flow_t {
    bit<16> id;
    bit<16> index;
    bit<8>  direct;
    bit<8>  indexed;
}

struct headers_t {
    ethernet_t eth;
    flow_t     flow;
}

struct meta_t {
    bit<8> colour;
}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.flow);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    meter(16, MeterType.packets) by_index;
    direct_meter<bit<8>>(MeterType.bytes) by_flow;

    action send(bit<9> port) {
        sm.egress_spec = port;
        by_flow.read(meta.colour);
    }
    action drop() {
        mark_to_drop(sm);
        by_flow.read(meta.colour);
    }

    table flows {
        key = { hdr.flow.id: exact; }
        actions = { send; drop; }
        size = 64;
        meters = by_flow;
        default_action = drop();
    }

    apply {
        flows.apply();
        hdr.flow.direct = meta.colour;
        by_index.execute_meter((bit<32>)hdr.flow.index, hdr.flow.indexed);
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
