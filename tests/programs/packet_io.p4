// SPDX-License-Identifier: Apache-2.0
// Packets to and from a controller: the headers that it puts before a packet and finds before one, with fields that are
// no whole bytes; and a digest and a clone for the controller.
#include "ethernet.p4"

const bit<9> CPU_PORT = 510;

@controller_header("packet_in")
header packet_in_t {
    bit<9>  ingress_port;
    bit<1>  is_clone;
    bit<6>  unused;
    bit<16> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9>  egress_port;
    bit<7>  unused;
    bit<16> mark;
}

struct headers_t {
    packet_out_t packet_out;
    packet_in_t  packet_in;
    ethernet_t   eth;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        transition select(sm.ingress_port) {
            CPU_PORT: from_controller;
            default: from_network;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition from_network;
    }
    state from_network {
        packet.extract(hdr.eth);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action send(bit<9> port) {
        sm.egress_spec = port;
    }
    action punt(bit<16> reason) {
        sm.egress_spec = CPU_PORT;
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = sm.ingress_port;
        hdr.packet_in.reason = reason;
    }

    table stations {
        key = { hdr.eth.dst: exact; }
        actions = { send; punt; }
        default_action = punt(1);
    }

    apply {
        if (hdr.packet_out.isValid()) {
            sm.egress_spec = hdr.packet_out.egress_port;
            hdr.eth.type = hdr.packet_out.mark;
            hdr.packet_out.setInvalid();
        } else {
            clone(CloneType.I2E, 5);
            stations.apply();
        }
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        if (sm.instance_type == 1) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = sm.egress_rid[8:0];
            hdr.packet_in.is_clone = 1;
        }
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
