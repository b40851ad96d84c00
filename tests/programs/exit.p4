// SPDX-License-Identifier: Apache-2.0
// exit: from an action and from the control; ingress ends there, egress runs all the same.
#include "ethernet.p4"

header trace_t {
    bit<8> where;
    bit<8> steps;
    bit<8> egress;
}

struct headers_t {
    ethernet_t eth;
    trace_t    trace;
}

struct meta_t {}

#include "plain.p4"

parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.eth);
        packet.extract(hdr.trace);
        transition accept;
    }
}

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action step() {
        hdr.trace.steps = hdr.trace.steps + 1;
    }
    action leave() {
        hdr.trace.steps = hdr.trace.steps + 16;
        exit;
    }

    table first {
        key = { hdr.trace.where: exact; }
        actions = { step; leave; }
        const entries = {
            1: leave();
        }
        default_action = step();
    }

    apply {
        sm.egress_spec = sm.ingress_port;
        first.apply();
        if (hdr.trace.where == 2) {
            hdr.trace.steps = hdr.trace.steps + 32;
            exit;
        }
        hdr.trace.steps = hdr.trace.steps + 64;
    }
}

control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.trace.egress = 1;
        if (hdr.trace.where == 3) {
            exit;
        }
        hdr.trace.egress = 2;
    }
}

V1Switch(Parse(), NoVerify(), MyIngress(), MyEgress(), NoCompute(), EmitAll()) main;
