// SPDX-License-Identifier: Apache-2.0
// Clones. ingress-to-egress: the packet as it came in is parsed again, its metadata is zero but for the listed field.
// egress-to-egress: the headers as they are at that moment. `what` bit 0 asks for the first, bit 1 for the second.
// The egress writes instance_type and the kept field into the packet.
#include "ethernet.p4"

header probe_t {
    bit<8>  what;
    bit<8>  instance;
    bit<16> kept;
    bit<16> lost;
    bit<16> length;
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
        meta.kept = 0x1111;
        meta.lost = 0x2222;
        if (hdr.probe.what[0:0] == 1) {
            clone_preserving_field_list(CloneType.I2E, 5, 1);
        }
        if (hdr.probe.what[2:2] == 1) {
            clone(CloneType.I2E, 6);
        }
        meta.kept = 0x3333;
        hdr.eth.src = 0x0a0b0c0d0e0f;
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.probe.instance = (bit<8>)sm.instance_type;
        hdr.probe.kept = meta.kept;
        hdr.probe.lost = meta.lost;
        hdr.probe.length = (bit<16>)sm.packet_length;
        if (sm.instance_type == 0 && hdr.probe.what[1:1] == 1) {
            clone_preserving_field_list(CloneType.E2E, 7, 1);
        }
        if (sm.instance_type == 0) {
            hdr.eth.type = 0x9999;
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
