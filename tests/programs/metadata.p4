// SPDX-License-Identifier: Apache-2.0
// Metadata as a program sees it: packet_length and instance_type in ingress and egress, egress_spec's value at the start of
// egress, port 0 for a packet that nobody sent anywhere, setValid of a header zeroes it.
#include "ethernet.p4"

header view_t {
    bit<8>  mode;
    bit<8>  ingress_port;
    bit<16> in_length;
    bit<16> out_length;
    bit<16> in_spec;
    bit<16> out_spec;
    bit<16> out_port;
}

header extra_t {
    bit<32> left_over;
}

struct headers_t {
    ethernet_t eth;
    view_t     view;
    extra_t    extra;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.view);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.view.ingress_port = (bit<8>)sm.ingress_port;
        hdr.view.in_length = (bit<16>)sm.packet_length;
        hdr.view.in_spec = (bit<16>)sm.egress_spec;
        if (hdr.view.mode == 1) {
            hdr.extra.setValid();
        } else if (hdr.view.mode == 2) {
            sm.egress_spec = 511;
        } else if (hdr.view.mode == 3) {
            sm.egress_spec = sm.ingress_port;
            hdr.eth.setInvalid();
        }
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.view.out_length = (bit<16>)sm.packet_length;
        hdr.view.out_spec = (bit<16>)sm.egress_spec;
        hdr.view.out_port = (bit<16>)sm.egress_port;
        if (hdr.view.mode == 4) {
            sm.egress_spec = 3;
        } else if (hdr.view.mode == 5) {
            mark_to_drop(sm);
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
