// SPDX-License-Identifier: Apache-2.0
// Resubmit: the packet as it came in goes through ingress again, with the listed fields kept; `rounds` bounds it.
#include "ethernet.p4"

header probe_t {
    bit<8>  rounds;
    bit<8>  instance;
    bit<16> kept;
    bit<16> lost;
    bit<16> touched;
}

struct headers_t {
    ethernet_t eth;
    probe_t    probe;
}

struct meta_t {
    @field_list(1)
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
        meta.kept = meta.kept + 1;
        meta.lost = meta.lost + 1;
        hdr.probe.touched = hdr.probe.touched + 1;
        if (meta.kept < (bit<16>)(hdr.probe.rounds & 7)) {
            resubmit_preserving_field_list(1);
        }
        hdr.probe.instance = (bit<8>)sm.instance_type;
        hdr.probe.kept = meta.kept;
        hdr.probe.lost = meta.lost;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), NoEgress(), NoCompute(), EmitAll()) main;
