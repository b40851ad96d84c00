// SPDX-License-Identifier: Apache-2.0
// Recirculate: the packet as it leaves egress comes in again, with the listed fields kept; each round grows it by a header.
#include "ethernet.p4"

header probe_t {
    bit<8>  rounds;
    bit<8>  instance;
    bit<16> kept;
    bit<16> lost;
    bit<16> length;
}

header step_t {
    bit<16> mark;
}

struct headers_t {
    ethernet_t eth;
    probe_t    probe;
    step_t     step;
}

struct meta_t {
    @field_list(2)
    bit<16> kept;
    bit<16> lost;
}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.probe);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        meta.lost = meta.lost + 1;
        hdr.probe.length = (bit<16>)sm.packet_length;
        hdr.probe.instance = (bit<8>)sm.instance_type;
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        meta.kept = meta.kept + 1;
        hdr.probe.kept = meta.kept;
        hdr.probe.lost = meta.lost;
        if (hdr.probe.rounds[2:0] != 0) {
            hdr.probe.rounds = hdr.probe.rounds - 1;
            hdr.step.setValid();
            hdr.step.mark = 0xaaaa;
            recirculate_preserving_field_list(2);
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
